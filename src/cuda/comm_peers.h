// What the ranks of a world tell each other, through the store, about their lives: collectives on
// GPUs do not notice that a peer is gone.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "comm/comm.h"

namespace trireme::cuda {

/// publish() and published() are for any thread, the others for one. A store that fails makes no
/// method throw.
class PeerWatch {
 public:
  /// `store` may be null: a world of one. Keys start with `prefix`.
  PeerWatch(comm::Store* store, std::string prefix, int rank);

  /// Says that this rank lives. Once a second or so.
  void beat();
  /// Says, for all ranks, why the world ends; the first reason stands.
  void publish(const std::string& reason);
  /// The reason published by any other rank: "rank 3: ...".
  std::optional<std::string> published();

  /// For a rank that waits for others: why one of `ranks` must be thought dead. Called again and
  /// again during one wait; a rank whose beat has not moved for `limit` since the first call of the
  /// wait is silent, and so is a store that does not answer.
  std::optional<std::string> silent(std::span<const int> ranks, std::chrono::milliseconds limit);
  /// The wait is over.
  void forget() { heard_.clear(); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Heard {
    std::string beat;
    Time since;
  };

  comm::Store* store_;
  std::string prefix_;
  int rank_;
  int64_t beats_ = 0;
  std::map<int, Heard> heard_;
};

}  // namespace trireme::cuda
