#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "host/write_queue.h"

namespace trireme::host {

namespace {

/// All of a request; 0 or the error number.
int write_fully(const File& file, WriteRequest request) {
  bool retried = false;
  while (request.bytes > 0) {
    const ssize_t put =
        ::pwrite(file.fd(), request.data, static_cast<size_t>(request.bytes), request.offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && !retried) {
      retried = true;
      stop_bypassing_page_cache(file);
      continue;
    }
    if (put < 0) return errno;
    if (put == 0) return ENOSPC;
    request.data += put;
    request.offset += put;
    request.bytes -= put;
  }
  return 0;
}

class ThreadQueue final : public WriteQueue {
 public:
  ThreadQueue(const File& file, int depth) : file_(file), depth_(depth) {
    const int num_threads = std::min(depth, 2);  // two keep a disk busy
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(const WriteRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      check(in_flight_ < depth_, "more than {} writes in flight", depth_);
      ++in_flight_;
      waiting_.push_back(request);
    }
    changed_.notify_all();
  }

  int wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !done_.empty(); });
    const Done done = done_.front();
    done_.pop_front();
    --in_flight_;
    if (done.error != 0) {
      throw DeviceError(
          fmt::format("write('{}'): {}", file_.path().string(), std::strerror(done.error)));
    }
    return done.tag;
  }

 private:
  struct Done {
    int tag;
    int error;  // 0: none
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const WriteRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int error = write_fully(file_, request);
      lock.lock();
      done_.push_back({request.tag, error});
      changed_.notify_all();
    }
  }

  const File& file_;
  const int depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WriteRequest> waiting_;
  std::deque<Done> done_;
  int in_flight_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<WriteQueue> make_thread_queue(const File& file, int depth) {
  return std::make_unique<ThreadQueue>(file, depth);
}

}  // namespace trireme::host
