// Host functions that run for a device, counted, so that nobody takes away what one of them uses.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace trireme::cuda {

/// Any thread may call anything.
class HostCalls {
 public:
  /// Whether a call may begin, which then must end().
  bool begin() {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    ++running_;
    return true;
  }

  void end() {
    const std::lock_guard lock(mutex_);
    --running_;
    if (running_ == 0) ended_.notify_all();
  }

  /// From here on none begins.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  /// Blocks until those that have begun are over, `limit` at most; whether they are. Those that
  /// were launched and have not begun are not waited for: after close() they never will.
  bool wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, limit, [this] { return running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  int64_t running_ = 0;
  bool closed_ = false;
};

}  // namespace trireme::cuda
