// The end of a step: sums that belong to more than the data ranks, the norm, and what they decide
// for the next step.
#include <algorithm>

#include "ops/control.h"
#include "plan/step_writer.h"

namespace trireme::plan {

using comm::CommKind;

void StepWriter::decide() {
  const State& state = *context_.state;
  sum_partial_gradients();
  count_squares();
  emit_sum(state.sums, state.world_sums, ops::kNumSums);

  const Span control{state.control, DType::f64, 0, ops::kControlSize};
  const Span control_host{state.control_host, DType::f64, 0, ops::kControlSize};
  FlatOp step;
  step.op = ops::OpKind::step_control;
  step.attributes = context_.optimizer_attributes;
  const int64_t entries = state.buffers[static_cast<size_t>(state.schedule)].bytes / 8;
  step.args = {control,
               {state.world_sums, DType::f64, 0, ops::kNumSums},
               {state.schedule, DType::f64, 0, entries}};
  emit_ops("step_control", {step},
           {updates(state.control), reads(state.world_sums), reads(state.schedule)});
  emit_copy(StreamKind::copy_out, control_host, control,
            {reads(state.control), writes(state.control_host)});
  emit_port(StreamKind::copy_out, {PortKind::metrics, control_host, -1, Plane::master, 0},
            {reads(state.control_host)});
}

/// Gradients of which tensor-parallel ranks, or both ends of the pipeline, hold a part each: what
/// the optimizer of this rank reads of them is summed, once for all micro-batches.
void StepWriter::sum_partial_gradients() {
  const auto sum = [&](GroupAxis axis, const auto& wanted) {
    TransferWish wish{CommKind::all_reduce, axis, DType::f32};
    std::vector<BufferAccess> accesses;
    for (int g = 0; g < static_cast<int>(residence_.size()); ++g) {
      const GroupState& s = context_.group_state(g);
      if (s.gradient < 0) continue;
      const auto [begin, end] = owned_range(g);
      for (const auto& [first, last] : wanted(context_.group(g), begin, end)) {
        const int64_t at =
            plane_span(g, s.gradient, s.gradient_whole, DType::f32, first, last).offset;
        wish.pieces.push_back({s.gradient, s.gradient, at, at, last - first});
        accesses.push_back(updates(s.gradient));
      }
    }
    emit_transfer(std::move(wish), std::move(accesses));
  };
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  const Mesh& mesh = *context_.mesh;
  if (mesh.layout.tp > 1) {
    sum(GroupAxis::tensor, [](const ParameterGroup& group, int64_t begin, int64_t end) {
      return group.key.tensor_sum ? Ranges{{begin, end}} : Ranges{};
    });
  }
  if (mesh.kv_replicas > 1) {
    sum(GroupAxis::kv_replicas, [](const ParameterGroup& group, int64_t begin, int64_t end) {
      Ranges ranges;  // empty ones too: plans of data ranks must not differ
      for (const Placed& placed : group.placed) {
        if (placed.sum != SumGroup::kv_replicas) continue;
        const int64_t first = std::clamp(placed.offset, begin, end);
        ranges.push_back({first, std::clamp(placed.offset + placed.size, first, end)});
      }
      return ranges;
    });
  }
  if (mesh.tied_ends && (mesh.first_stage() || mesh.last_stage())) {
    sum(GroupAxis::tied_ends, [](const ParameterGroup& group, int64_t begin, int64_t end) {
      return group.key.tied >= 0 ? Ranges{{begin, end}} : Ranges{};
    });
  }
}

/// Squares of the gradients, each element once in the world. The loss sums of a rank that is not
/// the one to count them are zeroed.
void StepWriter::count_squares() {
  const State& state = *context_.state;
  const Span squares{state.sums, DType::f64, 0, 1};
  std::vector<FlatOp> ops(1);
  ops[0].op = ops::OpKind::zero;
  ops[0].args = {counts_loss() ? squares : Span{state.sums, DType::f64, 0, ops::kNumSums}};
  std::vector<BufferAccess> accesses = {updates(state.sums)};
  int64_t workspace = 0;
  for (size_t i = 0; i < residence_.size(); ++i) {
    const int g = static_cast<int>(i);
    const GroupState& s = context_.group_state(g);
    if (s.gradient < 0) continue;
    accesses.push_back(reads(s.gradient));
    const int64_t begin = slice_begin(g);
    const auto squares_of = [&](int64_t first, int64_t last) {
      FlatOp op;
      op.op = ops::OpKind::sum_squares;
      op.law = ops::Law::add;
      op.args = {squares, plane_span(g, s.gradient, s.gradient_whole, DType::f32, first, last)};
      return op;
    };
    workspace =
        std::max(workspace, workspace_of(squares_of(begin, begin + context_.group(g).slice)));
    if (sharding().replica != 0) continue;
    for (const Segment& part :
         segments(*context_.model, context_.group(g), begin, begin + context_.group(g).slice)) {
      if (part.counted) ops.push_back(squares_of(part.begin, part.end));
    }
  }
  emit_ops("sums", std::move(ops), std::move(accesses), -1, workspace);
}

}  // namespace trireme::plan
