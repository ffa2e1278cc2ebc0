// From a formal instruction and a call's binding to the plain-data calls a device runs.
#pragma once

#include <cstddef>
#include <functional>

#include "plan/plan.h"

namespace trireme::exec {

/// One call of a phase: what its formal operands mean now.
struct PhaseCall {
  const plan::Plan* plan = nullptr;
  const plan::Program* program = nullptr;
  const plan::Phase* phase = nullptr;
  const plan::Entry* entry = nullptr;
  const plan::Binding* binding = nullptr;
  std::byte* arena = nullptr;
  ops::Extent extent;
};

/// Hands every operation of the call to `run`, in order; the loop of a phase runs once per chunk of
/// the extent's tokens (once, with no rows, when there are none).
void for_each_op(const PhaseCall& call, const std::function<void(const ops::OpCall&)>& run);

}  // namespace trireme::exec
