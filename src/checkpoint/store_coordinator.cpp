#include "checkpoint/store_coordinator.h"

#include <fmt/format.h>

namespace trireme::checkpoint {

std::vector<std::string> StoreCoordinator::exchange(std::string_view mine) {
  const auto key = [&](int64_t sequence, int rank) {
    return fmt::format("exchange/{}/{}", sequence, rank);
  };
  const int64_t sequence = sequence_++;
  store_.set(key(sequence, rank_), mine);
  // Everybody has read the exchange before the last one: its place is made small.
  if (sequence >= 2) store_.set(key(sequence - 2, rank_), "");
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_size_; ++rank) {
    texts.push_back(rank == rank_ ? std::string(mine) : store_.get(key(sequence, rank), timeout_));
  }
  return texts;
}

}  // namespace trireme::checkpoint
