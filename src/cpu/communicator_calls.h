// What the CPU communicators share: how one call is described, compared and counted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/comm.h"

namespace trireme::cpu {

/// A fixed-size description of a call, exchanged between its ranks. Plain data, sent as it lies in
/// memory (ranks share one architecture).
struct CallHeader {
  uint32_t magic = 0;
  comm::CommKind kind{};
  DType dtype{};
  DType wire{};
  uint8_t unused = 0;
  int32_t group = 0;
  int32_t root = 0;
  uint64_t sequence = 0;  // calls of this group before it (send, recv: of this pair and direction)
  int64_t num_pieces = 0;
  int64_t elements = 0;  // sum of the counts
  uint64_t digest = 0;   // of all counts in order
};
static_assert(sizeof(CallHeader) == 48);

CallHeader header_of(const comm::CommCall& call, uint64_t sequence);

/// How `theirs` contradicts `mine`, in words ("sends bf16, this rank f32"); nullopt when they
/// match. A send matches a recv.
std::optional<std::string> difference(const CallHeader& mine, const CallHeader& theirs);

/// "all_gather on group 2, call 17".
std::string describe(const CallHeader& header);

/// Throws BugError when a call cannot be meant: unknown root, dtype that is not summed, wire type
/// of what is no sum of f32, negative count, too little workspace.
void check_call(const comm::CommCall& call, int group_size, int group_rank);

/// Elements [begin, end) of the share that group rank `rank` sums in an all_reduce of `count`.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Share share_of(int64_t count, int group_size, int rank);

/// What rank `group_rank` sends for `call` (payload only): calls 1, one message for each peer and
/// phase that has bytes, however a backend cuts them.
comm::Traffic traffic_of(const comm::CommCall& call, int group_size, int group_rank);

/// Staging of the communicator between processes, an upper bound of both CPU communicators.
class CommSizing final : public comm::CommSizing {
 public:
  int64_t workspace_bytes(const comm::CommCall& call, int64_t group_size) const override;
};

/// Elements that one peer's staging holds at most.
inline constexpr int64_t kStagedElements = int64_t{128} << 10;

/// Elements of staging that `call` uses for what comes from each peer; with a wire type, for what
/// goes to it too.
int64_t staged_elements(const comm::CommCall& call, int64_t group_size);

}  // namespace trireme::cpu
