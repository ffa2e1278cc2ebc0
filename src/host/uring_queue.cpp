#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "host/write_queue.h"

namespace trireme::host {

namespace {

[[noreturn]] void throw_write(const File& file, int code) {
  throw DeviceError(fmt::format("write('{}'): {}", file.path().string(), std::strerror(code)));
}

class UringQueue final : public WriteQueue {
 public:
  UringQueue(const io_uring& ring, const File& file, int depth)
      : ring_(ring), file_(file), slots_(static_cast<size_t>(depth)) {}

  ~UringQueue() override {
    while (in_flight_ > 0) {  // the kernel still reads the data of these
      io_uring_cqe* completion = nullptr;
      const int code = io_uring_wait_cqe(&ring_, &completion);
      if (code == -EINTR) continue;
      if (code < 0) break;
      io_uring_cqe_seen(&ring_, completion);
      --in_flight_;
    }
    io_uring_queue_exit(&ring_);
  }

  void submit(const WriteRequest& request) override {
    check(in_flight_ < static_cast<int>(slots_.size()), "more than {} writes in flight",
          slots_.size());
    size_t slot = 0;
    while (slots_[slot].bytes > 0) ++slot;
    slots_[slot] = {request, false};
    send(slot);
    ++in_flight_;
  }

  int wait() override {
    while (true) {
      io_uring_cqe* completion = nullptr;
      const int code = io_uring_wait_cqe(&ring_, &completion);
      if (code == -EINTR) continue;
      if (code < 0) throw_write(file_, -code);
      const auto slot = static_cast<size_t>(io_uring_cqe_get_data64(completion));
      const int result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      Slot& request = slots_[slot];
      if (result == -EINVAL && !request.retried) {
        request.retried = true;
        stop_bypassing_page_cache(file_);
        send(slot);
        continue;
      }
      if (result == -EINTR || result == -EAGAIN) {
        send(slot);
        continue;
      }
      if (result > 0 && result < request.bytes) {  // a short write: the rest
        request.data += result;
        request.offset += result;
        request.bytes -= result;
        send(slot);
        continue;
      }
      --in_flight_;
      request.bytes = 0;
      if (result < 0) throw_write(file_, -result);
      if (result == 0) throw_write(file_, ENOSPC);
      return request.tag;
    }
  }

 private:
  struct Slot : WriteRequest {
    bool retried = false;
  };

  void send(size_t slot) {
    const WriteRequest& request = slots_[slot];
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    check(entry != nullptr, "the io_uring of '{}' is full", file_.path().string());
    io_uring_prep_write(entry, file_.fd(), request.data, static_cast<unsigned>(request.bytes),
                        static_cast<uint64_t>(request.offset));
    io_uring_sqe_set_data64(entry, slot);
    int code = 0;
    do {
      code = io_uring_submit(&ring_);
    } while (code == -EINTR || code == -EAGAIN);
    if (code < 0) throw_write(file_, -code);
  }

  io_uring ring_;
  const File& file_;
  std::vector<Slot> slots_;  // bytes 0: free
  int in_flight_ = 0;
};

}  // namespace

std::unique_ptr<WriteQueue> make_uring_queue(const File& file, int depth) {
  io_uring ring;
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return nullptr;
  return std::make_unique<UringQueue>(ring, file, depth);
}

}  // namespace trireme::host
