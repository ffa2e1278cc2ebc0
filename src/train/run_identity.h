// What all ranks of a run must have in common, compared before step 0: drift between ranks is an
// error, not a hang.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "checkpoint/coordinator.h"
#include "config/run_config.h"
#include "plan/plan.h"
#include "train/run_data.h"

namespace trireme::train {

/// The name of the samples to train on in what identity_of gives.
inline constexpr const char* kSamplesHash = "the hash of data_path's samples";

/// Every setting but paths (hosts may mount them elsewhere), and hashes of the samples that those
/// paths gave.
Json identity_of(const config::RunConfig& config, const RunData& data);

/// Collective. When the ranks differ: the same ConfigError on all of them, naming the first rank
/// that is not like rank 0 and every value in which it differs.
void compare_identities(checkpoint::Coordinator& ranks, const Json& mine);

/// Collective. Ranks of one stage and tensor rank must have planned the same: else the same
/// ConfigError on all of them. Returns the hash of all programs of the world.
uint64_t compare_programs(checkpoint::Coordinator& ranks, const plan::Plan& plan);

}  // namespace trireme::train
