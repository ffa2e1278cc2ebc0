// The verifier: independent of lowering, it proves of a finished program what nobody has to
// believe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/program.h"

namespace trireme::plan {

/// The first rule that a program of one rank breaks, as "train[2] #12 all_gather block.1: ...";
/// nullopt when it keeps all of them:
///   waits name earlier entries of other streams
///   a transient buffer is touched only between its acquire and its release, which pair up
///   a read follows, in the order of streams and waits, the last write of what it reads
///   a write follows the last write and every read since
///   a release follows every access of that life, and the next acquire follows the release
///   two buffers that share a byte never live at the same time; all lie within the arena
///   inside a phase, what is read was written before and not overwritten in between, and
///   operations and transfers that share bytes wait for each other
std::optional<std::string> find_fault(const Program& program, const ArenaBytes& arenas);

/// The rules inside a phase alone.
std::optional<std::string> find_fault(const Phase& phase);

/// Ranks of the group that `rank` meets on an axis, in group-rank order, itself included.
using Members = std::function<std::vector<int>(int rank, GroupAxis axis)>;

/// Runs the programs of a world of ranks against each other without computing anything: transfers
/// meet in the same order with the same kind, type and sizes, a send waits for its receive, phases
/// with transfers inside start together, and nobody waits for ever.
std::optional<std::string> find_world_fault(const std::vector<const Program*>& ranks,
                                            const Members& members);

/// "#12 all_gather block.1 mb 0": how messages and prints name an entry.
std::string describe(const Program& program, int32_t entry);

}  // namespace trireme::plan
