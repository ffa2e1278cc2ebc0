// Gives every buffer of a set of programs its place: one arena per space, the maximum over all.
#pragma once

#include <vector>

#include "plan/order.h"
#include "plan/program.h"

namespace trireme::plan {

/// One life of a transient buffer: from the entry that acquires to the entry that releases it.
struct Generation {
  int32_t acquire = 0;
  int32_t release = 0;
};
/// Lives of every buffer in schedule order; persistent buffers have none. BugError when an acquire
/// or release is missing.
std::vector<std::vector<Generation>> generations(const Program& program);

/// Whether all lives of two buffers are ordered one after the other, so that they may share memory.
bool may_share(const std::vector<Generation>& a, const std::vector<Generation>& b,
               const Order& order);

/// Sets Buffer::offset everywhere. Persistent buffers (the same in all programs) come first.
/// Returns the size of each arena.
ArenaBytes place_buffers(const std::vector<Program*>& programs);

/// The moment of a program at which most transient bytes live, in the order of its schedule. Streams
/// run side by side, so that more may live at once: what begins while a transfer before it still
/// reads its buffers.
struct Peak {
  int32_t entry = -1;
  int64_t live_bytes = 0;
  std::vector<int32_t> buffers;  // alive then
};
Peak find_peak(const Program& program, Space space);

}  // namespace trireme::plan
