// Lowering: from the model graph and a sharding to the programs of one rank.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "plan/emitter.h"
#include "plan/groups.h"
#include "plan/phase.h"
#include "plan/pipeline.h"
#include "plan/program.h"
#include "plan/state.h"

namespace trireme::plan {

/// Everything lowering reads. Owned by the Plan; borrowed.
struct LoweringContext {
  const model::ModelGraph* model = nullptr;
  const Groups* groups = nullptr;
  const Mesh* mesh = nullptr;
  const Pipeline* pipeline = nullptr;
  const Sharding* sharding = nullptr;
  const State* state = nullptr;
  DType compute = DType::f32;
  config::Optimizer optimizer = config::Optimizer::adamw;
  uint64_t seed = 0;                     // of stochastic rounding
  ops::Attributes optimizer_attributes;  // betas, eps, weight_decay, max_grad_norm
  ops::Extent capacity;
  std::vector<UnitPhases> variants;
  std::vector<int> variant_of_unit;  // -1: a unit of another stage
  const ops::OpSizing* op_sizing = nullptr;
  const comm::CommSizing* comm_sizing = nullptr;

  const UnitPhases& phases(int unit) const {
    return variants[static_cast<size_t>(variant_of_unit[static_cast<size_t>(unit)])];
  }
  const ParameterGroup& group(int g) const { return groups->groups[static_cast<size_t>(g)]; }
  const GroupState& group_state(int g) const { return state->groups[static_cast<size_t>(g)]; }
};

/// One optimizer step of `accumulation` micro-batches: the update of the step before (deferred,
/// unit by unit, before its weights are used), forward, loss and backward of each micro-batch,
/// reductions, and the decisions of this step.
Program lower_train(const LoweringContext& context, int accumulation);
/// Applies a pending update and leaves the weights whole where they persist whole.
Program lower_flush(const LoweringContext& context);
/// Sums := 0; one micro-batch of evaluation; sums over the world, handed to the host.
Program lower_evaluate_begin(const LoweringContext& context);
Program lower_evaluate(const LoweringContext& context);
Program lower_evaluate_end(const LoweringContext& context);
/// Fills constants and every plane from the host; this rank's slices only, then gathers.
Program lower_load(const LoweringContext& context);
/// The same from weights alone: moments become zero where they are.
Program lower_load_weights(const LoweringContext& context);
/// Hands this rank's slices of every plane to the host, in the type that State says.
Program lower_save(const LoweringContext& context);
/// Hands this rank's slices of the gradient sums of the last step to the host: for proofs.
Program lower_gradients(const LoweringContext& context);
/// Hands the weights of every group to the host, gathered one group at a time.
Program lower_export(const LoweringContext& context);

}  // namespace trireme::plan
