// Plans without a device: for tests of programs.
#pragma once

#include "null/device.h"
#include "plan/plan.h"

namespace trireme::testing {

struct NullPlanOptions {
  config::RunConfig config;
  model::ModelGraph model;
  int64_t ranks = 1;
  int64_t rank = 0;
  ops::Extent capacity{64, 4, 32};
  std::vector<int> accumulations = {1};
  bool evaluates = true;
  const comm::CommSizing* comm_sizing = nullptr;  // null: nothing is staged
};

inline plan::Plan null_plan(const NullPlanOptions& options) {
  const null::OpSizing op_sizing;
  const null::CommSizing comm_sizing;
  plan::PlanRequest request;
  request.config = &options.config;
  request.model = &options.model;
  request.world_size = options.ranks;
  request.rank = options.rank;
  request.capacity = options.capacity;
  request.rope_positions = options.capacity.longest;
  request.schedule_entries = 100;
  request.accumulations = options.accumulations;
  request.evaluates = options.evaluates;
  request.op_sizing = &op_sizing;
  request.comm_sizing = options.comm_sizing == nullptr ? &comm_sizing : options.comm_sizing;
  return plan::make_plan(request);
}

/// Qwen2.5-7B as its config.json says.
inline model::ModelConfig qwen2_7b() {
  model::ModelConfig config;
  config.family = model::Family::qwen2;
  config.hidden_size = 3584;
  config.num_layers = 28;
  config.num_heads = 28;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.intermediate_size = 18944;
  config.vocab_size = 152064;
  config.max_position_embeddings = 32768;
  config.qkv_bias = true;
  return config;
}

}  // namespace trireme::testing
