#include "cuda/comm_peers.h"

#include "base/error.h"

namespace trireme::cuda {

PeerWatch::PeerWatch(comm::Store* store, std::string prefix, int rank)
    : store_(store), prefix_(std::move(prefix)), rank_(rank) {}

void PeerWatch::beat() {
  if (store_ == nullptr) return;
  try {
    store_->set(fmt::format("{}/beat/{}", prefix_, rank_), std::to_string(++beats_));
  } catch (const std::exception&) {
    // silent() tells, when somebody waits.
  }
}

void PeerWatch::publish(const std::string& reason) {
  if (store_ == nullptr) return;
  try {
    if (store_->add(prefix_ + "/ends", 1) > 1) return;
    store_->set(prefix_ + "/end", fmt::format("{} {}", rank_, reason));
  } catch (const std::exception&) {
    // The peers then learn it from silence.
  }
}

std::optional<std::string> PeerWatch::published() {
  if (store_ == nullptr) return std::nullopt;
  try {
    const std::optional<std::string> end = store_->try_get(prefix_ + "/end");
    if (!end) return std::nullopt;
    const size_t space = end->find(' ');
    const std::string rank = end->substr(0, space);
    if (rank == std::to_string(rank_) || space == std::string::npos) return std::nullopt;
    return fmt::format("rank {}: {}", rank, end->substr(space + 1));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<std::string> PeerWatch::silent(std::span<const int> ranks,
                                             std::chrono::milliseconds limit) {
  if (store_ == nullptr) return std::nullopt;
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    std::string beat;
    std::string why;
    try {
      beat = store_->try_get(fmt::format("{}/beat/{}", prefix_, rank)).value_or("");
    } catch (const std::exception& error) {
      why = fmt::format(", the store does not answer ({})", error.what());
    }
    const Time now = std::chrono::steady_clock::now();
    const auto [known, first] = heard_.try_emplace(rank, Heard{beat, now});
    if (first) continue;
    if (why.empty() && known->second.beat != beat) {
      known->second = {beat, now};
    } else if (now - known->second.since > limit) {
      return fmt::format("rank {} has given no sign of life for {} s{}", rank,
                         std::chrono::duration_cast<std::chrono::seconds>(limit).count(), why);
    }
  }
  return std::nullopt;
}

}  // namespace trireme::cuda
