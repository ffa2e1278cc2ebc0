// Staging of collectives on the GPU. NCCL reads and writes the buffers themselves, and an adding
// reduce_scatter adds into the sender's own share before it sends (nccl_communicator.h). Only sums
// with a wire type have staging: for each peer a place for what goes to it and one for what comes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "comm/comm.h"

namespace trireme::cuda {

/// The most that a call stages. A sum that would need more runs in rounds.
inline constexpr int64_t kStagedBytes = int64_t{64} << 20;
/// Shares begin at multiples of so many elements in the staging.
inline constexpr int64_t kStagedAlignment = 8;

/// Elements of a piece that each rank of a group of `size` sums, but for the last ones of an
/// all_reduce, which may have fewer.
inline int64_t wire_share(const comm::CommCall& call, const comm::CommPiece& piece, int64_t size) {
  if (call.kind == comm::CommKind::reduce_scatter) return piece.count;
  return round_up(ceil_div(piece.count, size), kStagedAlignment);
}

/// Elements of all shares of one rank, as they lie one after the other.
inline int64_t wire_elements(const comm::CommCall& call, int64_t size) {
  int64_t elements = 0;
  for (const comm::CommPiece& piece : call.pieces) {
    elements += round_up(wire_share(call, piece, size), kStagedAlignment);
  }
  return elements;
}

/// Elements that one place of the staging holds: those of one round.
inline int64_t staged_elements(const comm::CommCall& call, int64_t size) {
  if (size == 1) return 0;
  const int64_t most = kStagedBytes / (2 * (size - 1) * size_of(*call.wire));
  const int64_t whole = most / kStagedAlignment * kStagedAlignment;
  return std::min(wire_elements(call, size), std::max(whole, kStagedAlignment));
}

class CommSizing final : public comm::CommSizing {
 public:
  int64_t workspace_bytes(const comm::CommCall& call, int64_t group_size) const override {
    if (!call.wire) return 0;
    return 2 * (group_size - 1) * staged_elements(call, group_size) * size_of(*call.wire);
  }
};

}  // namespace trireme::cuda
