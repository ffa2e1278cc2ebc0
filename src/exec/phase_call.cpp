#include "exec/phase_call.h"

#include <algorithm>

#include "base/math.h"

namespace trireme::exec {

namespace {

using plan::Bound;
using plan::Instruction;
using plan::Operand;

/// Rows of the micro-batch that one trip round the loop handles.
struct Chunk {
  int64_t begin = 0;
  int64_t index = 0;
  bool looped = false;
};

std::byte* base_of(const PhaseCall& call, const Operand& operand) {
  const auto at = [&](int32_t buffer) {
    check(buffer >= 0, "an operand {} of {} has no buffer", name_of(operand.bound),
          call.phase->name);
    return call.arena + call.program->buffers[static_cast<size_t>(buffer)].offset;
  };
  const auto span = [&](const plan::Span& s) { return at(s.buffer) + s.offset; };
  const auto slot = static_cast<size_t>(operand.index);
  switch (operand.bound) {
    case Bound::none:
      return nullptr;
    case Bound::frame:
      return at(call.entry->frame) + operand.offset;
    case Bound::saved:
      return at(call.binding->saved) + operand.offset;
    case Bound::deferred:
      return at(call.binding->deferred) + operand.offset;
    case Bound::input:
      return at(call.binding->input);
    case Bound::output:
      return at(call.binding->output);
    case Bound::output_gradient:
      return at(call.binding->output_gradient);
    case Bound::input_gradient:
      return at(call.binding->input_gradient);
    case Bound::weight:
      return span(call.binding->weights[slot]);
    case Bound::gradient:
      return span(call.binding->gradients[slot]);
    case Bound::batch: {
      const ops::BatchLayout layout{call.plan->capacity};
      return at(call.entry->batch) +
             layout.offset(static_cast<ops::BatchField>(operand.index)) * size_of(DType::i32);
    }
    case Bound::rope_table:
      return at(call.program->rope_table);
    case Bound::loss_sums:
      return at(call.program->loss_sums) + call.program->loss_sums_offset;
  }
  return nullptr;
}

TensorView view_of(const PhaseCall& call, const Operand& operand, const Chunk& chunk) {
  if (operand.bound == Bound::none) return {};
  std::byte* data = base_of(call, operand);
  if (operand.bound == Bound::rope_table) {
    return matrix(data, DType::f32, call.plan->rope_positions, call.plan->model.config.head_dim);
  }
  ops::Extent extent = call.extent;
  if (operand.sliced || operand.chunk) {
    extent.tokens = std::clamp<int64_t>(extent.tokens - chunk.begin, 0, call.phase->chunk);
  }
  const plan::Shape shape =
      plan::shape_of(operand, call.plan->model.dims, extent, call.phase->chunk);
  if (operand.sliced) {
    const int64_t row = operand.bound == Bound::batch ? 1 : shape.cols;
    data += chunk.begin * row * size_of(operand.dtype);
  }
  return matrix(data, operand.dtype, shape.rows, shape.cols);
}

ops::Law law_of(const PhaseCall& call, const Instruction& instruction, const Chunk& chunk) {
  const bool first_chunk = !chunk.looped || chunk.index == 0;
  switch (instruction.law) {
    case model::LawRule::set:
      return ops::Law::set;
    case model::LawRule::add:
      return ops::Law::add;
    case model::LawRule::first_micro_batch:
      return call.entry->set && first_chunk ? ops::Law::set : ops::Law::add;
    case model::LawRule::gradient: {
      const auto slot = static_cast<uint32_t>(instruction.args[0].index);
      const bool first = ((call.entry->set_slots >> slot) & 1u) != 0;
      return first && first_chunk ? ops::Law::set : ops::Law::add;
    }
  }
  return ops::Law::set;
}

std::byte* workspace_of(const PhaseCall& call, const Instruction& instruction) {
  if (instruction.workspace_bytes == 0) return nullptr;
  return call.arena + call.program->buffers[static_cast<size_t>(call.entry->frame)].offset +
         instruction.workspace_offset;
}

class Caller {
 public:
  Caller(const PhaseCall& call, const std::function<void(const InstructionCall&)>& run)
      : call_(call), run_(run) {}

  void run() {
    const int count = static_cast<int>(call_.phase->instructions.size());
    for (int i = 0; i < count; ++i) {
      if (i < call_.phase->loop_begin || i >= call_.phase->loop_end) {
        one(i, {});
        continue;
      }
      const int64_t chunk = call_.phase->chunk;
      const int64_t chunks = std::max<int64_t>(1, ceil_div(call_.extent.tokens, chunk));
      for (int64_t c = 0; c < chunks; ++c) {
        for (int j = i; j < call_.phase->loop_end; ++j) one(j, {c * chunk, c, true});
      }
      i = call_.phase->loop_end - 1;
    }
  }

 private:
  void one(int index, const Chunk& chunk) {
    made_.index = index;
    made_.instruction = &call_.phase->instructions[static_cast<size_t>(index)];
    if (made_.instruction->transfer) {
      transfer(*made_.instruction, chunk);
    } else {
      operation(*made_.instruction, chunk);
    }
    run_(made_);
  }

  void operation(const Instruction& instruction, const Chunk& chunk) {
    ops::OpCall& op = made_.op;
    op = {};
    op.kind = instruction.op;
    op.dtype = instruction.dtype;
    op.law = law_of(call_, instruction, chunk);
    if (instruction.law == model::LawRule::gradient) {
      // The law of a second writer of one gradient inside a phase.
      const uint64_t bit = uint64_t{1} << instruction.args[0].index;
      if ((written_ & bit) != 0) op.law = ops::Law::add;
      written_ |= bit;
    }
    op.attributes = instruction.attributes;
    op.attributes.longest = static_cast<int32_t>(call_.extent.longest);
    op.attributes.even = call_.extent.even;
    op.attributes.lengths = call_.extent.lengths;
    op.num_args = static_cast<int32_t>(instruction.args.size());
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      op.args[a] = view_of(call_, instruction.args[a], chunk);
    }
    op.workspace = workspace_of(call_, instruction);
    op.workspace_bytes = instruction.workspace_bytes;
  }

  void transfer(const Instruction& instruction, const Chunk& chunk) {
    const TensorView out = view_of(call_, instruction.args[0], chunk);
    const TensorView in = view_of(call_, instruction.args[1], chunk);
    const bool gathers = *instruction.transfer == comm::CommKind::all_gather;
    made_.piece = {in.data, out.data, gathers ? in.size() : out.size()};
    comm::CommCall& transfer = made_.transfer;
    transfer = {};
    transfer.kind = *instruction.transfer;
    transfer.dtype = out.dtype;
    transfer.workspace = workspace_of(call_, instruction);
    transfer.workspace_bytes = instruction.workspace_bytes;
  }

  const PhaseCall& call_;
  const std::function<void(const InstructionCall&)>& run_;
  uint64_t written_ = 0;  // gradients, by slot
  InstructionCall made_;
};

}  // namespace

void for_each_instruction(const PhaseCall& call,
                          const std::function<void(const InstructionCall&)>& run) {
  Caller(call, run).run();
}

void for_each_op(const PhaseCall& call, const std::function<void(const ops::OpCall&)>& run) {
  for_each_instruction(call, [&](const InstructionCall& made) {
    if (!made.instruction->transfer) run(made.op);
  });
}

}  // namespace trireme::exec
