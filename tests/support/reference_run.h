// A training run as a plain loop in double: what any layout of the engine must compute.
#pragma once

#include <vector>

#include "support/rig.h"
#include "support/unit_interpreter.h"

namespace trireme::testing {

struct ReferenceStep {
  double loss = 0;
  double tokens = 0;
  double grad_norm = 0;
  double clip_coef = 0;
  double learning_rate = 0;
};

struct ReferenceRun {
  std::vector<ReferenceStep> steps;
  DoubleTensors gradients;  // of the first step, divided by its trained tokens
  DoubleTensors masters;
};

/// The whole tensors of a source.
DoubleTensors weights_of(const model::ModelGraph& model, train::StateSource& source);
/// The values that a bf16 model computes with.
DoubleTensors rounded_to_bf16(DoubleTensors masters);

/// All samples of a step are one batch; no slots, no shards, no micro-batches.
ReferenceRun train_in_double(const RigOptions& options);

/// Largest |a - b| / max |b| of a tensor, over all tensors of b.
double relative_difference(const Tensors& a, const DoubleTensors& b);

}  // namespace trireme::testing
