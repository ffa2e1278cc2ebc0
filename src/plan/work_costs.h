// What the units of a model cost, for balancing stages and timing schedules. Pure.
#pragma once

#include <vector>

#include "model/graph.h"
#include "ops/batch.h"
#include "plan/timeline.h"

namespace trireme::plan {

/// Floating-point operations of each unit on one micro-batch, by the cost rules of the operations;
/// all sequences equally long; `levels`: what each block recomputes, from the front. The head's
/// loss makes its gradients in one go: all of its work counts as input gradient.
std::vector<WorkCosts> work_costs(const model::ModelGraph& model, const ops::Extent& extent,
                                  const std::vector<model::Recompute>& levels = {});

}  // namespace trireme::plan
