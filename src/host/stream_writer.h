// A file written from front to end at the speed of the disk: the caller's thread copies and hashes
// while earlier buffers travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "host/write_queue.h"

namespace trireme::host {

enum class WriteEngine { automatic, uring, threads };  // automatic: io_uring if the kernel lets us
enum class PageCache { automatic, bypass, use };       // automatic: bypass where the disk allows it

struct WriteOptions {
  WriteEngine engine = WriteEngine::automatic;
  PageCache page_cache = PageCache::automatic;
  int64_t buffer_bytes = int64_t{4} << 20;  // a multiple of 4096
  int num_buffers = 4;
  int64_t hash_block_bytes = 0;  // of which each gets a hash; 0: one hash of all
};

/// Memory: buffer_bytes * num_buffers. One caller thread. After an error every call throws the same
/// error; the file stays as it is, for the caller to remove.
class StreamWriter {
 public:
  /// Makes a new file; an existing one is a DeviceError, as is an engine asked for by name that
  /// this machine does not have.
  explicit StreamWriter(const std::filesystem::path& path, const WriteOptions& options = {});
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  /// Takes a copy. Blocks while all buffers are in flight.
  void write(const void* data, int64_t bytes);
  /// Writes what is left, fsyncs and closes.
  void finish();

  /// Bytes taken so far, and the hashes of their blocks: one hash where hash_block_bytes is 0.
  int64_t bytes() const { return bytes_; }
  std::vector<Hash128> hashes() const { return hasher_.digests(); }
  /// "io_uring" or "threads", then ", direct" when the page cache is bypassed.
  std::string description() const;

 private:
  struct Release {
    void operator()(std::byte* memory) const;
  };

  void open_queue(const WriteOptions& options);
  void send_current(int64_t bytes);
  void fill_next();
  void write_tail();

  File file_;
  bool direct_ = false;
  std::string_view engine_;
  int64_t buffer_bytes_;
  std::unique_ptr<std::byte, Release> memory_;
  std::unique_ptr<WriteQueue> queue_;  // after memory_: its destructor waits for the writes
  std::vector<int> free_;              // buffers
  int num_buffers_;
  int current_ = 0;     // the buffer being filled
  int64_t filled_ = 0;  // bytes in it
  int64_t sent_ = 0;    // bytes handed to the queue
  int64_t bytes_ = 0;
  BlockHasher hasher_;
  std::string error_;
};

}  // namespace trireme::host
