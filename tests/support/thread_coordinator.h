// Ranks as threads that exchange texts.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "checkpoint/coordinator.h"

namespace trireme::test {

/// What the ranks of one world share.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : size_(size), texts_(static_cast<size_t>(size)) {}
  int size() const { return size_; }

  std::vector<std::string> exchange(int rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lost_ || leaving_ == 0; });
    if (lost_) throw CommError("a rank is lost");
    texts_[static_cast<size_t>(rank)] = mine;
    if (++arrived_ == size_) {
      arrived_ = 0;
      leaving_ = size_;
      ++round_;
      changed_.notify_all();
    } else {
      const int round = round_;
      changed_.wait(lock, [&] { return lost_ || round_ != round; });
      if (round_ == round) throw CommError("a rank is lost");
    }
    std::vector<std::string> result = texts_;
    if (--leaving_ == 0) changed_.notify_all();
    return result;
  }

  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  int arrived_ = 0;
  int leaving_ = 0;
  int round_ = 0;
  bool lost_ = false;
};

class ThreadCoordinator final : public checkpoint::Coordinator {
 public:
  ThreadCoordinator(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return world_.size(); }
  std::vector<std::string> exchange(std::string_view mine) override {
    return world_.exchange(rank_, mine);
  }

 private:
  ThreadWorld& world_;
  int rank_;
};

/// Runs `body(coordinator)` as every rank of a world. Returns what() of each rank's exception, ""
/// where there was none; a rank that throws outside an exchange is lost to the others.
inline std::vector<std::string> run_ranks(
    int size, const std::function<void(checkpoint::Coordinator&)>& body) {
  ThreadWorld world(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCoordinator coordinator(world, rank);
      try {
        body(coordinator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        world.lose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace trireme::test
