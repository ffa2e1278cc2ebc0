// What all ranks of a run must have in common, compared before step 0: drift between ranks is an
// error, not a hang.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "checkpoint/coordinator.h"
#include "config/run_config.h"
#include "train/run_data.h"

namespace trireme::train {

/// Every setting but paths (hosts may mount them elsewhere), hashes of the samples that those paths
/// gave, and the hash of the planned programs.
Json identity_of(const config::RunConfig& config, const RunData& data, uint64_t plan_hash);

/// Collective. When the ranks differ: the same ConfigError on all of them, naming the first rank
/// that is not like rank 0 and every value in which it differs.
void compare_identities(checkpoint::Coordinator& ranks, const Json& mine);

}  // namespace trireme::train
