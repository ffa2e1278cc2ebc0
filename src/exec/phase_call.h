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

/// One instruction of a call, in this trip round the loop: an operation or a transfer.
struct InstructionCall {
  int index = 0;
  const plan::Instruction* instruction = nullptr;
  ops::OpCall op;
  comm::CommCall transfer;  // without pieces and group
  comm::CommPiece piece;
};

/// Hands every instruction of the call to `run`, in order; the loop of a phase runs once per chunk
/// of the extent's tokens (once, with no rows, when there are none).
void for_each_instruction(const PhaseCall& call,
                          const std::function<void(const InstructionCall&)>& run);
/// The operations alone.
void for_each_op(const PhaseCall& call, const std::function<void(const ops::OpCall&)>& run);

}  // namespace trireme::exec
