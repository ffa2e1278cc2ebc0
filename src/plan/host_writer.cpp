// Programs through which host data enters and leaves: load, save, export; and the small ones around
// them: flush, begin and end of evaluation.
#include <algorithm>

#include "ops/control.h"
#include "plan/program_writer.h"

namespace trireme::plan {

namespace {

using comm::CommKind;

constexpr int64_t kTile = int64_t{4} << 20;  // elements that travel at one time

class HostWriter : public ProgramWriter {
 public:
  using ProgramWriter::ProgramWriter;

  void flush() {
    for (int g = 0; g < num_groups(); ++g) {
      const GroupState& s = context_.group_state(g);
      if (!context_.group(g).key.trainable) continue;
      emit_optimizer(g);
      if (s.value_whole && !s.optimizer_whole) gather_plane(g, s.value, context_.compute);
    }
    FlatOp op;
    op.op = ops::OpKind::clear_pending;
    op.args = {control()};
    emit_ops("clear_pending", {op}, {updates(context_.state->control)});
  }

  void evaluate_begin() { zero_eval_sums(); }

  void evaluate_end() {
    const State& state = *context_.state;
    if (!counts_loss()) zero_eval_sums();
    emit_sum(state.eval_sums, state.eval_world_sums, 2);
    const Span host{state.eval_host, DType::f64, 0, 2};
    emit_copy(StreamKind::copy_out, host, {state.eval_world_sums, DType::f64, 0, 2},
              {reads(state.eval_world_sums), writes(state.eval_host)});
    emit_port(StreamKind::copy_out, {PortKind::eval_sums, host, -1, Plane::master, 0},
              {reads(state.eval_host)});
  }

  void load() {
    load_constants();
    for (int g = 0; g < num_groups(); ++g) {
      for (Plane plane : planes(g)) load_plane(g, plane);
      if (sharding().shard_ranks <= 1) continue;
      spread_masters(g);
      spread_moments(g);
    }
  }

  void load_weights() {
    load_constants();
    for (int g = 0; g < num_groups(); ++g) {
      load_plane(g, Plane::master);
      zero_moments(g);
      if (sharding().shard_ranks > 1) spread_masters(g);
    }
  }

  void save() {
    make_tiles();
    for (int g = 0; g < num_groups(); ++g) {
      for (Plane plane : planes(g)) save_plane(g, plane);
    }
  }

  void gradients() {
    make_tiles();
    for (int g = 0; g < num_groups(); ++g) {
      if (context_.group_state(g).gradient >= 0) save_plane(g, Plane::gradient);
    }
  }

  void export_weights() {
    make_tiles();
    for (int g = 0; g < num_groups(); ++g) {
      const GroupState& s = context_.group_state(g);
      int32_t source = s.value;
      if (!s.value_whole) {
        source = weight_slot(g);
        emit_transfer({CommKind::all_gather,
                       GroupAxis::shard,
                       context_.compute,
                       {gather_to_slot(g)},
                       true,
                       context_.group(g).unit},
                      {reads(s.value), acquired(writes(source))});
      }
      for_tiles(0, context_.group(g).size, [&](int64_t begin, int64_t end) {
        if (sharding().shard_rank == 0 && sharding().replica == 0)
          export_tile(g, source, begin, end);
      });
      if (!s.value_whole) release_slot(source);
    }
  }

 private:
  void zero_eval_sums() {
    FlatOp op;
    op.op = ops::OpKind::zero;
    op.args = {{context_.state->eval_sums, DType::f64, 0, 2}};
    emit_ops("zero", {op}, {writes(context_.state->eval_sums)});
  }

  int num_groups() const { return static_cast<int>(context_.groups->groups.size()); }
  Span control() const { return {context_.state->control, DType::f64, 0, ops::kControlSize}; }

  std::vector<Plane> planes(int g) const {
    if (context_.group_state(g).exp_avg < 0) return {Plane::master};
    return {Plane::master, Plane::exp_avg, Plane::exp_avg_sq};
  }

  /// Where a plane lies; `split`: a master over value and remainder.
  struct Kept {
    Span span;
    int32_t buffer = -1;
    bool split = false;
  };
  Kept kept(int g, Plane plane, int64_t begin, int64_t end) const {
    const GroupState& s = context_.group_state(g);
    const State& state = *context_.state;
    if (plane == Plane::master) {
      return {value_span(g, begin, end), s.value, state.masters != context_.compute};
    }
    const int32_t buffer = plane == Plane::gradient  ? s.gradient
                           : plane == Plane::exp_avg ? s.exp_avg
                                                     : s.exp_avg_sq;
    const bool whole = plane == Plane::gradient ? s.gradient_whole : s.optimizer_whole;
    const DType dtype = plane == Plane::gradient ? DType::f32 : state.moments;
    return {plane_span(g, buffer, whole, dtype, begin, end), buffer, false};
  }

  /// One copy of the state is saved.
  void save_plane(int g, Plane plane) {
    if (sharding().replica != 0) return;
    for_tiles(slice_begin(g), slice_begin(g) + context_.group(g).slice,
              [&](int64_t begin, int64_t end) { save_tile(g, plane, begin, end); });
  }

  void make_tiles() {
    int64_t largest = ops::kControlSize * 2;
    for (const auto& group : context_.groups->groups) largest = std::max(largest, group.size);
    tile_ = std::min(kTile, largest);
    for (int i = 0; i < 2; ++i) {
      host_[i] = emitter_.add_buffer(fmt::format("tile.host.{}", i), Owner::staging, Space::pinned,
                                     tile_ * 4);
      here_[i] =
          emitter_.add_buffer(fmt::format("tile.{}", i), Owner::staging, Space::device, tile_ * 4);
    }
  }

  template <typename Visit>
  void for_tiles(int64_t begin, int64_t end, const Visit& visit) {
    for (int64_t at = begin; at < end; at += tile_) visit(at, std::min(end, at + tile_));
  }

  /// Two tiles take turns, so that files and device work at the same time.
  size_t next_tile() { return tile_turn_++ % 2; }

  void constant(ConstantKind which, int32_t buffer, DType dtype) {
    const int64_t total = program_.buffers[static_cast<size_t>(buffer)].bytes / size_of(dtype);
    const int64_t per_tile = tile_ * 4 / size_of(dtype);
    for (int64_t at = 0; at < total; at += per_tile) {
      const int64_t count = std::min(per_tile, total - at);
      const size_t t = next_tile();
      const Span host{host_[t], dtype, 0, count};
      Port port{PortKind::constants, host, static_cast<int32_t>(which), Plane::master, at};
      emit_port(StreamKind::copy_in, port, {acquired(writes(host_[t]))});
      emit_copy(StreamKind::copy_in, {buffer, dtype, at * size_of(dtype), count}, host,
                {released(reads(host_[t])), updates(buffer)});
    }
  }

  void load_constants() {
    make_tiles();
    constant(ConstantKind::schedule, context_.state->schedule, DType::f64);
    constant(ConstantKind::rope_table, context_.state->rope_table, DType::f32);
    load_control();
  }

  void load_plane(int g, Plane plane) {
    for_tiles(slice_begin(g), slice_begin(g) + context_.group(g).slice,
              [&](int64_t begin, int64_t end) { load_tile(g, plane, begin, end); });
  }

  /// Zeros need no way through the host.
  void zero_moments(int g) {
    const GroupState& s = context_.group_state(g);
    if (s.exp_avg < 0) return;
    std::vector<FlatOp> ops;
    for (const int32_t buffer : {s.exp_avg, s.exp_avg_sq}) {
      const int64_t begin = s.optimizer_whole ? 0 : slice_begin(g);
      const int64_t count = s.optimizer_whole ? context_.group(g).size : context_.group(g).slice;
      FlatOp& op = ops.emplace_back();
      op.op = ops::OpKind::zero;
      op.args = {plane_span(g, buffer, s.optimizer_whole, context_.state->moments, begin,
                            begin + count)};
    }
    emit_ops("zero moments", std::move(ops), {writes(s.exp_avg), writes(s.exp_avg_sq)},
             context_.group(g).unit);
  }

  void load_control() {
    const size_t t = next_tile();
    const Span host{host_[t], DType::f64, 0, ops::kControlSize};
    emit_port(
        StreamKind::copy_in,
        {PortKind::constants, host, static_cast<int32_t>(ConstantKind::control), Plane::master, 0},
        {acquired(writes(host_[t]))});
    emit_copy(StreamKind::copy_in, control(), host,
              {released(reads(host_[t])), writes(context_.state->control)});
  }

  /// Files are read as fp32, whatever is kept.
  void load_tile(int g, Plane plane, int64_t begin, int64_t end) {
    const size_t t = next_tile();
    const Span host{host_[t], DType::f32, 0, end - begin};
    emit_port(StreamKind::copy_in, {PortKind::load, host, g, plane, begin},
              {acquired(writes(host_[t]))});
    const Kept to = kept(g, plane, begin, end);
    if (plane != Plane::master && to.span.dtype == DType::f32) {
      emit_copy(StreamKind::copy_in, to.span, host,
                {released(reads(host_[t])), updates(to.buffer)});
      return;
    }
    const Span here{here_[t], DType::f32, 0, end - begin};
    emit_copy(StreamKind::copy_in, here, host,
              {released(reads(host_[t])), acquired(writes(here_[t]))});
    std::vector<BufferAccess> accesses = {released(reads(here_[t])), updates(to.buffer)};
    FlatOp op;
    op.op = ops::OpKind::import_master;
    op.dtype = context_.compute;
    op.args = {to.span, {}, here};
    if (to.split) {
      op.args[1] = remainder_span(g, begin, end);
      accesses.push_back(updates(context_.group_state(g).remainder));
    }
    emit_ops("import", {op}, std::move(accesses), context_.group(g).unit);
  }

  /// Absent for a frozen group.
  Span remainder_span(int g, int64_t begin, int64_t end) const {
    const GroupState& s = context_.group_state(g);
    return plane_span(g, s.remainder, s.optimizer_whole, DType::i16, begin, end);
  }

  void gather_plane(int g, int32_t buffer, DType dtype) {
    if (buffer < 0) return;
    emit_transfer({CommKind::all_gather,
                   GroupAxis::shard,
                   dtype,
                   {gather_in_place(g, buffer, dtype)},
                   true,
                   context_.group(g).unit},
                  {updates(buffer)});
  }

  /// After the owners loaded their slices: planes that persist whole become whole.
  void spread_masters(int g) {
    const GroupState& s = context_.group_state(g);
    if (s.value_whole) gather_plane(g, s.value, context_.compute);
    if (s.optimizer_whole) gather_plane(g, s.remainder, DType::i16);
  }
  void spread_moments(int g) {
    const GroupState& s = context_.group_state(g);
    if (!s.optimizer_whole) return;
    gather_plane(g, s.exp_avg, context_.state->moments);
    gather_plane(g, s.exp_avg_sq, context_.state->moments);
  }

  /// As kept; a split master as the fp32 that it is.
  void save_tile(int g, Plane plane, int64_t begin, int64_t end) {
    const Kept from = kept(g, plane, begin, end);
    const size_t t = next_tile();
    const Span host{host_[t], from.split ? DType::f32 : from.span.dtype, 0, end - begin};
    if (from.split) {
      const GroupState& s = context_.group_state(g);
      const Span here{here_[t], DType::f32, 0, end - begin};
      FlatOp op;
      op.op = ops::OpKind::export_master;
      op.dtype = context_.compute;
      op.args = {here, from.span, remainder_span(g, begin, end)};
      emit_ops("export", {op}, {acquired(writes(here_[t])), reads(s.value), reads(s.remainder)},
               context_.group(g).unit);
      emit_copy(StreamKind::copy_out, host, here,
                {acquired(writes(host_[t])), released(reads(here_[t]))});
    } else {
      emit_copy(StreamKind::copy_out, host, from.span,
                {acquired(writes(host_[t])), reads(from.buffer)});
    }
    emit_port(StreamKind::copy_out, {PortKind::save, host, g, plane, begin},
              {released(reads(host_[t]))});
  }

  void export_tile(int g, int32_t source, int64_t begin, int64_t end) {
    const size_t t = next_tile();
    const Span host{host_[t], context_.compute, 0, end - begin};
    emit_copy(StreamKind::copy_out, host,
              {source, context_.compute, begin * size_of(context_.compute), end - begin},
              {acquired(writes(host_[t])), reads(source)});
    emit_port(StreamKind::copy_out, {PortKind::export_weights, host, g, Plane::master, begin},
              {released(reads(host_[t]))});
  }

  /// Ends a slot's life where no reader did: an empty list of operations on compute.
  void release_slot(int32_t slot) {
    Entry entry;
    entry.kind = EntryKind::ops;
    entry.item = 0;
    entry.count = 0;
    entry.what = "release";
    emitter_.emit(std::move(entry), {released(updates(slot))});
  }

  int64_t tile_ = 0;
  size_t tile_turn_ = 0;
  int32_t host_[2] = {-1, -1};
  int32_t here_[2] = {-1, -1};
};

template <void (HostWriter::*Write)()>
Program written(const LoweringContext& context, std::string name) {
  HostWriter writer(context, std::move(name));
  (writer.*Write)();
  return writer.finish();
}

}  // namespace

Program lower_flush(const LoweringContext& context) {
  return written<&HostWriter::flush>(context, "flush");
}
Program lower_evaluate_begin(const LoweringContext& context) {
  return written<&HostWriter::evaluate_begin>(context, "evaluate_begin");
}
Program lower_evaluate_end(const LoweringContext& context) {
  return written<&HostWriter::evaluate_end>(context, "evaluate_end");
}
Program lower_load(const LoweringContext& context) {
  return written<&HostWriter::load>(context, "load");
}
Program lower_load_weights(const LoweringContext& context) {
  return written<&HostWriter::load_weights>(context, "load_weights");
}
Program lower_save(const LoweringContext& context) {
  return written<&HostWriter::save>(context, "save");
}
Program lower_gradients(const LoweringContext& context) {
  return written<&HostWriter::gradients>(context, "gradients");
}
Program lower_export(const LoweringContext& context) {
  return written<&HostWriter::export_weights>(context, "export");
}

}  // namespace trireme::plan
