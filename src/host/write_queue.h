// Writes in flight to one file. Two bodies: io_uring, and threads where the kernel has none or
// forbids it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/file.h"

namespace trireme::host {

/// `bytes` of `data` at `offset`; `tag` comes back from wait().
struct WriteRequest {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0;
  int tag = 0;
};

/// At most `depth` requests in flight. One caller thread. The destructor waits for all of them.
class WriteQueue {
 public:
  virtual ~WriteQueue() = default;
  /// Returns at once. The data must stay until wait() gives the tag back.
  virtual void submit(const WriteRequest& request) = 0;
  /// Blocks until some request is done in full; returns its tag. DeviceError when it failed.
  virtual int wait() = 0;
};

/// Lets later writes use the page cache. A write past it that is refused as invalid (by a limit or
/// a disk that does not go by whole blocks) is tried again in this way, once.
void stop_bypassing_page_cache(const File& file);

/// nullptr when this kernel offers no io_uring to this process. `file` must outlive the queue.
std::unique_ptr<WriteQueue> make_uring_queue(const File& file, int depth);
std::unique_ptr<WriteQueue> make_thread_queue(const File& file, int depth);

}  // namespace trireme::host
