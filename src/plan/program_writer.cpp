#include "plan/program_writer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/stochastic_rounding.h"
#include "ops/control.h"

namespace trireme::plan {

using comm::CommKind;

namespace {

/// Index of `item`, stored once when the same was stored shortly before (each micro-batch repeats).
template <typename Item>
int32_t store(std::vector<Item>& items, const Item& item) {
  constexpr size_t kLookBack = 4;
  const size_t first = items.size() > kLookBack ? items.size() - kLookBack : 0;
  const auto known = std::find(items.begin() + static_cast<int64_t>(first), items.end(), item);
  if (known == items.end()) return items.push_back(item), static_cast<int32_t>(items.size()) - 1;
  return static_cast<int32_t>(known - items.begin());
}

StreamKind stream_of(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::shard:
    case GroupAxis::replica:
      return StreamKind::comm_dp;
    case GroupAxis::tensor:
    case GroupAxis::kv_replicas:
      return StreamKind::comm_tp;
    case GroupAxis::to_next:
      return StreamKind::send_next;
    case GroupAxis::from_previous:
      return StreamKind::recv_prev;
    case GroupAxis::to_previous:
      return StreamKind::send_prev;
    case GroupAxis::from_next:
      return StreamKind::recv_next;
    case GroupAxis::world:
    case GroupAxis::tied_ends:
      return StreamKind::comm_control;
  }
  return StreamKind::comm_control;
}

}  // namespace

ProgramWriter::ProgramWriter(const LoweringContext& context, std::string name)
    : context_(context), emitter_(program_, context.sharding->overlap) {
  program_.name = std::move(name);
  program_.buffers = context.state->buffers;
  program_.rope_table = context.state->rope_table;
}

std::pair<int64_t, int64_t> ProgramWriter::owned_range(int g) const {
  const ParameterGroup& group = context_.group(g);
  if (context_.group_state(g).optimizer_whole) return {0, group.size};
  return {slice_begin(g), slice_begin(g) + group.slice};
}

bool ProgramWriter::counts_loss() const {
  return context_.mesh->last_stage() && context_.mesh->at.tp == 0;
}

Span ProgramWriter::plane_span(int g, int32_t buffer, bool whole, DType dtype, int64_t begin,
                               int64_t end) const {
  if (buffer < 0) return {};
  const int64_t base = whole ? 0 : slice_begin(g);
  return {buffer, dtype, (begin - base) * size_of(dtype), end - begin};
}

Span ProgramWriter::value_span(int g, int64_t begin, int64_t end) const {
  const GroupState& s = context_.group_state(g);
  return plane_span(g, s.value, s.value_whole, context_.compute, begin, end);
}

int32_t ProgramWriter::slot_buffer(std::map<std::pair<int32_t, int32_t>, int32_t>& made,
                                   const Pool& pool, PoolPlace place, Owner owner,
                                   const std::string& prefix) {
  const auto [at, fresh] = made.try_emplace({place.pool, place.slot}, -1);
  if (fresh) {
    at->second = emitter_.add_buffer(fmt::format("{}.{}.{}", prefix, pool.name, place.slot), owner,
                                     Space::device, pool.bytes);
  }
  return at->second;
}

int32_t ProgramWriter::weight_slot(int g) {
  const PoolPlace place = context_.group_state(g).weight_slot;
  return slot_buffer(weight_slots_, context_.state->weight_pools[static_cast<size_t>(place.pool)],
                     place, Owner::weight_slots, "weight_slot");
}

int32_t ProgramWriter::gradient_slot(int g) {
  const PoolPlace place = context_.group_state(g).gradient_slot;
  return slot_buffer(gradient_slots_,
                     context_.state->gradient_pools[static_cast<size_t>(place.pool)], place,
                     Owner::gradient_slots, "gradient_slot");
}

/// The update of elements [begin, end) of a group, which are of one segment.
FlatOp ProgramWriter::update_op(int g, const Segment& segment, int64_t begin, int64_t end) const {
  const GroupState& s = context_.group_state(g);
  const DType moments = context_.state->moments;
  const auto owned = [&](int32_t buffer, DType dtype) {
    return plane_span(g, buffer, s.optimizer_whole, dtype, begin, end);
  };
  FlatOp op;
  op.op = context_.optimizer == config::Optimizer::adamw ? ops::OpKind::adamw : ops::OpKind::sgd;
  op.dtype = context_.compute;
  op.attributes = context_.optimizer_attributes;
  if (!segment.decay) op.attributes.weight_decay = 0;
  op.args = {value_span(g, begin, end), owned(s.remainder, DType::i16)};
  if (op.op == ops::OpKind::adamw) {
    op.args.push_back(owned(s.exp_avg, moments));
    op.args.push_back(owned(s.exp_avg_sq, moments));
  }
  op.args.push_back(plane_span(g, s.gradient, s.gradient_whole, DType::f32, begin, end));
  op.args.push_back({context_.state->control, DType::f64, 0, ops::kControlSize});
  if (context_.state->rounds()) {
    // By name, and by the part that tensor parallelism leaves: the same for every way of sharding.
    const Placed& placed = *segment.first;
    const int64_t element = begin - placed.offset;
    const std::string& name =
        context_.model->parameters[static_cast<size_t>(placed.parameter)].name;
    const std::string stream =
        fmt::format("{} {} {}", name, mesh::to_string(placed.box), element / kRoundingElements);
    op.attributes.rounding_stream = hash64(stream, context_.seed);
    op.attributes.first_element = element % kRoundingElements;
  }
  return op;
}

void ProgramWriter::emit_optimizer(int g) {
  const ParameterGroup& group = context_.group(g);
  const GroupState& s = context_.group_state(g);
  const auto [begin, end] = owned_range(g);
  const bool rounds = context_.state->rounds();  // each parameter with a stream of its own
  std::vector<FlatOp> ops;
  for (const Segment& segment : segments(*context_.model, group, begin, end, !rounds)) {
    const int64_t tile = sharding().optimizer_tile.value_or(segment.end - segment.begin);
    for (int64_t at = segment.begin; at < segment.end;) {
      int64_t stop = std::min(segment.end, at + tile);
      if (rounds) {
        const int64_t from = at - segment.first->offset;
        stop = std::min(stop, at + kRoundingElements - from % kRoundingElements);
      }
      ops.push_back(update_op(g, segment, at, stop));
      at = stop;
    }
  }
  emit_ops("optimizer", std::move(ops),
           {updates(s.value), updates(s.remainder), updates(s.exp_avg), updates(s.exp_avg_sq),
            reads(s.gradient), reads(context_.state->control)},
           group.unit);
}

TransferPiece ProgramWriter::gather_in_place(int g, int32_t buffer, DType dtype) const {
  return {buffer, buffer, slice_begin(g) * size_of(dtype), 0, context_.group(g).slice};
}

TransferPiece ProgramWriter::gather_to_slot(int g) {
  return {context_.group_state(g).value, weight_slot(g), 0, 0, context_.group(g).slice};
}

void ProgramWriter::emit_transfer(TransferWish wish, std::vector<BufferAccess> accesses,
                                  const std::vector<int32_t>& after) {
  if (wish.pieces.empty()) return;
  const StreamKind stream = stream_of(wish.axis);
  const int64_t rows =
      wish.per_row ? context_.model->dims.at(model::Dim::sequence, context_.capacity.tokens) : 1;
  std::string key = fmt::format("{}/{}/{}", static_cast<int>(wish.kind),
                                static_cast<int>(wish.axis), static_cast<int>(wish.dtype));
  if (wish.wire) key += fmt::format("/{}", static_cast<int>(*wish.wire));
  std::vector<comm::CommPiece> sizes;
  for (const TransferPiece& piece : wish.pieces) {
    key += fmt::format("/{}+{}>{}+{}x{}:{}", piece.send, piece.send_offset, piece.receive,
                       piece.receive_offset, piece.count, piece.stride);
    sizes.push_back({nullptr, nullptr, piece.count * rows, piece.stride});
  }
  comm::CommCall call;
  call.kind = wish.kind;
  call.dtype = wish.dtype;
  call.wire = wish.wire;
  call.pieces = sizes;
  const int64_t staging =
      context_.comm_sizing->workspace_bytes(call, group_size(*context_.mesh, wish.axis));
  Span workspace;
  if (staging > 0) {
    workspace = {staging_buffer(stream, staging), DType::u8, 0, staging};
    accesses.push_back(acquired(released(writes(workspace.buffer))));
  }
  const auto [at, fresh] = transfers_.try_emplace(key, program_.transfers.size());
  if (fresh) {
    program_.transfers.push_back({wish.kind, wish.axis, wish.dtype, std::move(wish.pieces),
                                  workspace, wish.per_row, wish.wire});
  }
  Entry entry;
  entry.kind = EntryKind::transfer;
  entry.stream = stream;
  entry.item = at->second;
  entry.set = wish.set;
  entry.unit = wish.unit;
  entry.micro_batch = wish.micro_batch;
  entry.what = comm::name_of(wish.kind);
  emitter_.emit(std::move(entry), std::move(accesses), after);
}

/// One buffer for all transfers of a stream, as large as the largest needs.
int32_t ProgramWriter::staging_buffer(StreamKind stream, int64_t bytes) {
  const auto [at, fresh] = staging_.try_emplace(stream, -1);
  if (fresh) {
    at->second = emitter_.add_buffer(fmt::format("staging.{}", device::name_of(stream)),
                                     Owner::staging, Space::device, 0);
  }
  int64_t& room = program_.buffers[static_cast<size_t>(at->second)].bytes;
  room = std::max(room, bytes);
  return at->second;
}

int64_t ProgramWriter::workspace_of(const FlatOp& op) const {
  ops::OpCall call;
  call.kind = op.op;
  call.dtype = op.dtype;
  call.law = op.law;
  call.attributes = op.attributes;
  call.num_args = static_cast<int32_t>(op.args.size());
  for (size_t a = 0; a < op.args.size(); ++a) {
    call.args[a] = vector(nullptr, op.args[a].dtype, op.args[a].count);
  }
  return context_.op_sizing->workspace_bytes(call);
}

void ProgramWriter::emit_ops(std::string_view what, std::vector<FlatOp> ops,
                             std::vector<BufferAccess> accesses, int unit, int64_t workspace) {
  for (FlatOp& op : ops) {
    op.workspace.count = workspace_of(op);
    workspace = std::max(workspace, op.workspace.count);
  }
  Entry entry;
  entry.kind = EntryKind::ops;
  entry.stream = StreamKind::compute;
  if (workspace > 0) {
    const int32_t buffer =
        emitter_.add_buffer(fmt::format("frame.{}", what), Owner::frames, Space::device, workspace);
    for (FlatOp& op : ops) {
      if (op.workspace.count > 0) op.workspace = {buffer, DType::u8, 0, op.workspace.count};
    }
    accesses.push_back(acquired(released(writes(buffer))));
  }
  entry.item = static_cast<int32_t>(program_.ops.size());
  entry.count = static_cast<int32_t>(ops.size());
  entry.unit = unit;
  entry.what = what;
  std::move(ops.begin(), ops.end(), std::back_inserter(program_.ops));
  emitter_.emit(std::move(entry), std::move(accesses));
}

void ProgramWriter::emit_copy(StreamKind stream, const Span& to, const Span& from,
                              std::vector<BufferAccess> accesses) {
  check(to.count * size_of(to.dtype) == from.count * size_of(from.dtype), "a copy of {} to {}",
        from.count, to.count);
  Entry entry;
  entry.kind = EntryKind::copy;
  entry.stream = stream;
  entry.item = store(program_.copies, Copy{to, from});
  entry.what = "copy";
  emitter_.emit(std::move(entry), std::move(accesses));
}

void ProgramWriter::emit_port(StreamKind stream, const Port& port,
                              std::vector<BufferAccess> accesses, int micro_batch) {
  Entry entry;
  entry.kind = EntryKind::port;
  entry.stream = stream;
  entry.item = store(program_.ports, port);
  entry.micro_batch = micro_batch;
  entry.what = name_of(port.kind);
  emitter_.emit(std::move(entry), std::move(accesses));
}

void ProgramWriter::emit_sum(int32_t from, int32_t to, int64_t count) {
  if (context_.mesh->layout.world_size() == 1) return;
  emit_transfer({CommKind::all_reduce, GroupAxis::world, DType::f64, {{from, to, 0, 0, count}}},
                {reads(from), writes(to)});
}

}  // namespace trireme::plan
