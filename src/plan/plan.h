// The plan of a run: every program of one rank, placed in memory and verified.
//
// Pure: needs no device, no ranks and no files. The run allocates the arenas it names, once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/lowering.h"
#include "plan/program.h"

namespace trireme::plan {

/// Facts of the run that the configuration alone does not tell.
struct PlanRequest {
  const config::RunConfig* config = nullptr;
  const model::ModelGraph* model = nullptr;
  int64_t world_size = 1;
  int64_t rank = 0;
  ops::Extent capacity;            // largest micro-batch of any rank, training and evaluation
  int64_t rope_positions = 0;      // rows of the rotary table
  int64_t schedule_entries = 0;    // learning rates
  std::vector<int> accumulations;  // distinct numbers of micro-batches of a step
  bool evaluates = false;
  int64_t loss_chunk_bytes = int64_t{128} << 20;  // of logits
  const ops::OpSizing* op_sizing = nullptr;
  const comm::CommSizing* comm_sizing = nullptr;
};

struct Plan {
  model::ModelGraph model;  // as this rank holds it; parameters keep their global shapes
  Mesh mesh;
  Pipeline pipeline;
  Groups groups;
  Sharding sharding;
  State state;
  DType compute = DType::f32;
  ops::Extent capacity;
  int64_t rope_positions = 0;
  std::map<int, Program> train;  // by accumulation
  Program flush;
  Program evaluate_begin, evaluate, evaluate_end;  // empty schedules when nothing is evaluated
  Program load, load_weights, save, gradients, export_weights;
  ArenaBytes arenas{};
  uint64_t hash = 0;  // of everything that ranks of one stage and tensor rank must agree on

  std::vector<const Program*> programs() const;
};

/// Lowers, places and verifies. Throws ConfigError for settings that do not fit the model, BugError
/// when a program breaks a rule of the verifier.
Plan make_plan(const PlanRequest& request);

/// What the configuration's ZeRO keys mean for this model (design: DeepSpeed's keys on units).
/// ConfigError when shard_group_size does not fit.
Sharding resolve_sharding(const config::RunConfig& config, const model::ModelGraph& model,
                          const Mesh& mesh);

/// Planned bytes by owner. Rows of a space add up to its arena: persistent buffers, transient ones
/// at the moment when most of them live, staging that lies beside those, and what packing could not
/// fill.
struct MemoryRow {
  std::string owner;
  Space space{};
  int64_t bytes = 0;
};
std::vector<MemoryRow> memory_table(const Plan& plan);

}  // namespace trireme::plan
