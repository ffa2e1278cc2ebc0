// The ranks of a job, met through its store.
#pragma once

#include <chrono>
#include <cstdint>

#include "checkpoint/coordinator.h"
#include "comm/comm.h"

namespace trireme::checkpoint {

class StoreCoordinator final : public Coordinator {
 public:
  /// `store` is borrowed. A rank that has not come after `timeout` is lost: CommError.
  StoreCoordinator(comm::Store& store, int rank, int world_size, std::chrono::milliseconds timeout)
      : store_(store), rank_(rank), world_size_(world_size), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::vector<std::string> exchange(std::string_view mine) override;

 private:
  comm::Store& store_;
  int rank_;
  int world_size_;
  std::chrono::milliseconds timeout_;
  int64_t sequence_ = 0;  // exchanges done, the same on every rank
};

}  // namespace trireme::checkpoint
