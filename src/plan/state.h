// What persists from step to step, and where: the planes of every parameter group under a ZeRO
// stage, the control block and the constants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/groups.h"
#include "plan/program.h"

namespace trireme::plan {

/// How the step is cut over data ranks, resolved from the configuration. Data rank = replica x
/// shard_ranks + shard_rank: one copy of the state lies in shard_ranks neighbours.
struct Sharding {
  int stage = 0;  // ZeRO 0-3
  int64_t shard_ranks = 1;
  int64_t shard_rank = 0;
  int64_t replicas = 1;  // hybrid sharding: copies of the state
  int64_t replica = 0;
  bool reduce_each_micro_batch = false;
  /// What gradients travel as between data ranks, where not as f32 (comm::CommCall).
  std::optional<DType> gradient_wire = {};
  bool overlap = true;
  int64_t weight_slots = 2;  // of each pool of gathered groups
  int64_t gradient_slots = 2;
  int64_t prefetch = 1;  // phases ahead that weights are gathered
  /// Keep gathered weights for a next use within this many elements of other units; nullopt: where
  /// it costs no memory.
  std::optional<int64_t> reuse_distance;
  std::optional<int64_t> reduce_bucket;   // elements of a group reduced in one piece; nullopt: all
  std::optional<int64_t> optimizer_tile;  // elements
  int64_t persistence_threshold = -1;

  int64_t data_ranks() const { return shard_ranks * replicas; }
};

/// A place among interchangeable buffers: group i of a pool uses slot i mod pool size.
struct PoolPlace {
  int32_t pool = -1;
  int32_t slot = 0;
  bool used() const { return pool >= 0; }
};

/// Planes of one group. A plane is either whole (size elements) or this rank's slice of it.
struct GroupState {
  int32_t value = -1;      // compute dtype
  int32_t remainder = -1;  // i16, under bf16 where masters are f32
  int32_t exp_avg = -1;    // State::moments, adamw only
  int32_t exp_avg_sq = -1;
  int32_t gradient = -1;  // f32
  bool value_whole = true;
  bool optimizer_whole = true;  // remainder and moments, and the range the optimizer updates
  bool gradient_whole = true;
  PoolPlace weight_slot;    // where a sliced value is gathered
  PoolPlace gradient_slot;  // where a micro-batch's gradient waits for its reduction
};

struct Pool {
  std::string name;
  int64_t bytes = 0;  // of one slot
  int32_t slots = 0;
};

struct State {
  std::vector<Buffer> buffers;  // persistent, the first buffers of every program
  DType masters = DType::f32;   // what is kept: f32, or bf16 under bf16
  DType moments = DType::f32;
  std::vector<GroupState> groups;
  std::vector<Pool> weight_pools;
  std::vector<Pool> gradient_pools;
  int32_t control = -1;       // f64[kControlSize]
  int32_t control_host = -1;  // pinned
  int32_t schedule = -1;      // f64, learning rates
  int32_t rope_table = -1;
  int32_t sums = -1;  // f64[kNumSums], this rank's
  int32_t world_sums = -1;
  int32_t eval_sums = -1;
  int32_t eval_world_sums = -1;
  int32_t eval_host = -1;  // pinned

  /// Whether updates round stochastically.
  bool rounds() const { return masters == DType::bf16 || moments == DType::bf16; }
};

struct StateRequest {
  const model::ModelGraph* model = nullptr;
  const Mesh* mesh = nullptr;
  const Groups* groups = nullptr;
  const Sharding* sharding = nullptr;
  DType compute = DType::f32;
  DType masters = DType::f32;
  DType moments = DType::f32;
  config::Optimizer optimizer = config::Optimizer::adamw;
  int64_t schedule_entries = 0;
  int64_t rope_positions = 0;
};

State make_state(const StateRequest& request);

}  // namespace trireme::plan
