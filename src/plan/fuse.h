// Rewrites of a phase's ordered operations that spare passes over memory.
#pragma once

#include <vector>

#include "model/graph.h"

namespace trireme::plan {

/// `recomputed`: per node, whether it is a forward operation inside backward. `kept`: per value,
/// whether it is read after the phase. Every kept value, and every gradient of a parameter, comes
/// out the same up to the rounding of what is no longer stored in between:
///   linear, then add of its result to another value: one linear with a residual
///   xent_stats, and xent_grad of the same logits by these statistics: one pass for both
///   swiglu again in backward, whose result weight gradients alone read: an output of
///     swiglu_input_grad, which reads the same operand; those weight gradients then follow it
///   rms_norm_input_grad and rms_norm_weight_grad of one norm: one rms_norm_grad
void fuse(std::vector<model::Node>& nodes, std::vector<bool>& recomputed,
          const std::vector<bool>& kept);

}  // namespace trireme::plan
