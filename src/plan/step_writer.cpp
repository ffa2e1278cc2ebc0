#include "plan/step_writer.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "ops/control.h"

namespace trireme::plan {

using comm::CommKind;

StepWriter::StepWriter(const LoweringContext& context, std::string name, bool train,
                       int micro_batches)
    : ProgramWriter(context, std::move(name)), train_(train), micro_batches_(micro_batches) {
  residence_.resize(context.groups->groups.size());
  for (size_t g = 0; g < residence_.size(); ++g) {
    residence_[g].updated = !train || !context.group(static_cast<int>(g)).key.trainable;
  }
  gradient_first_.assign(residence_.size(), -1);
  gradient_last_.assign(residence_.size(), -1);
  for (auto& list : phase_of_variant_) list.assign(context.variants.size(), -1);
  program_.loss_sums = train ? context.state->sums : context.state->eval_sums;
  program_.loss_sums_offset = train ? ops::index(ops::Sum::loss) * size_of(DType::f64) : 0;
  list_events();
  make_buffers();
}

void StepWriter::list_events() {
  const int units = context_.model->num_units();
  for (int m = 0; m < micro_batches_; ++m) {
    for (int u = 0; u < units; ++u) {
      const bool loss = train_ && context_.model->graph(u).output < 0;
      events_.push_back({u, m, loss});
    }
    if (!train_) continue;
    for (int u = units - 2; u >= 0; --u) {
      if (!context_.phases(u).backward.instructions.empty()) events_.push_back({u, m, true});
    }
  }
  group_events_.resize(residence_.size());
  for (size_t e = 0; e < events_.size(); ++e) {
    const Event& event = events_[e];
    event_groups_.push_back(groups_of(event.unit, phase_of(event), Bound::weight));
    for (int g : event_groups_.back()) group_events_[static_cast<size_t>(g)].push_back(e);
    if (!event.backward) continue;
    for (int g : groups_of(event.unit, phase_of(event), Bound::gradient)) {
      int& first = gradient_first_[static_cast<size_t>(g)];
      if (first < 0) first = event.unit;
      gradient_last_[static_cast<size_t>(g)] = event.unit;
    }
  }
  event_entry_.assign(events_.size(), -1);
  if (train_) check_gradients();
}

/// A gradient that nobody writes would be whatever its memory held before.
void StepWriter::check_gradients() const {
  std::set<std::pair<int, int64_t>> written;
  for (const Event& event : events_) {
    if (!event.backward || event.micro_batch > 0) continue;
    for (int slot : phase_of(event).slots(Bound::gradient)) {
      const SlotPlace& place = place_of(event.unit, slot);
      written.emplace(place.group, place.offset);
    }
  }
  for (int u = 0; u < context_.model->num_units(); ++u) {
    const auto& names = context_.model->graph(u).slots;
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const SlotPlace& place = place_of(u, static_cast<int>(slot));
      check(!context_.group(place.group).key.trainable ||
                written.contains({place.group, place.offset}),
            "{} of {} is trainable but no loss depends on it", names[slot].name,
            context_.model->units[static_cast<size_t>(u)].name);
    }
  }
}

const Phase& StepWriter::phase_of(const Event& event) const {
  const UnitPhases& phases = context_.phases(event.unit);
  if (!train_) return phases.evaluate;
  return event.backward ? phases.backward : phases.forward;
}

int32_t StepWriter::phase_index(const Event& event) {
  const size_t which = train_ ? (event.backward ? 1 : 0) : 2;
  int32_t& index = phase_of_variant_[which][static_cast<size_t>(
      context_.variant_of_unit[static_cast<size_t>(event.unit)])];
  if (index < 0) {
    index = static_cast<int32_t>(program_.phases.size());
    program_.phases.push_back(phase_of(event));
    const Phase& phase = program_.phases.back();
    frames_.push_back(phase.frame_bytes == 0
                          ? -1
                          : emitter_.add_buffer(fmt::format("frame.{}.{}", phase.name, index),
                                                Owner::frames, Space::device, phase.frame_bytes));
  }
  return index;
}

std::vector<int> StepWriter::groups_of(int unit, const Phase& phase, Bound bound) const {
  std::vector<int> found;
  for (int slot : phase.slots(bound)) {
    found.push_back(
        context_.groups->places[static_cast<size_t>(unit)][static_cast<size_t>(slot)].group);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void StepWriter::make_buffers() {
  const int units = context_.model->num_units();
  const ops::BatchLayout layout{context_.capacity};
  const int64_t batch_bytes = layout.total() * size_of(DType::i32);
  for (int i = 0; i < std::min(2, micro_batches_); ++i) {
    batch_.push_back(
        emitter_.add_buffer(fmt::format("batch.{}", i), Owner::batch, Space::device, batch_bytes));
    batch_host_.push_back(emitter_.add_buffer(fmt::format("batch.host.{}", i), Owner::batch,
                                              Space::pinned, batch_bytes));
  }
  const int64_t hidden_bytes = context_.capacity.tokens * context_.model->dims[model::Dim::hidden] *
                               size_of(context_.compute);
  program_.bindings.resize(static_cast<size_t>(units));
  for (int u = 0; u < units; ++u) {
    Binding& binding = program_.bindings[static_cast<size_t>(u)];
    const std::string& name = context_.model->units[static_cast<size_t>(u)].name;
    if (u > 0) binding.input = program_.bindings[static_cast<size_t>(u) - 1].output;
    if (u + 1 < units) {
      binding.output =
          emitter_.add_buffer("x." + name, Owner::activations, Space::device, hidden_bytes);
    }
    const int64_t saved = context_.phases(u).saved_bytes;
    if (train_ && saved > 0) {
      binding.saved =
          emitter_.add_buffer("saved." + name, Owner::activations, Space::device, saved);
    }
    for (const SlotPlace& place : context_.groups->places[static_cast<size_t>(u)]) {
      const GroupState& s = context_.group_state(place.group);
      const int32_t value = s.value_whole ? s.value : weight_slot(place.group);
      binding.weights.push_back(
          {value, context_.compute, place.offset * size_of(context_.compute), 0});
      const int32_t gradient =
          s.gradient_slot.used() && train_ ? gradient_slot(place.group) : s.gradient;
      binding.gradients.push_back({gradient, DType::f32, place.offset * 4, 0});
    }
  }
  if (!train_) return;
  for (int u = units - 1; u > 0; --u) {  // gradients of hidden states, in place where they may
    Binding& binding = program_.bindings[static_cast<size_t>(u)];
    const Phase& phase = context_.phases(u).backward;
    if (phase.gradient_in_place) {
      binding.input_gradient = binding.output_gradient;
    } else if (phase.uses(Bound::input_gradient)) {
      binding.input_gradient =
          emitter_.add_buffer("d." + context_.model->units[static_cast<size_t>(u)].name,
                              Owner::activations, Space::device, hidden_bytes);
    }
    program_.bindings[static_cast<size_t>(u) - 1].output_gradient = binding.input_gradient;
  }
}

void StepWriter::write() {
  int batch_of = -1;
  for (size_t e = 0; e < events_.size(); ++e) {
    if (events_[e].micro_batch != batch_of) {
      batch_of = events_[e].micro_batch;
      emit_batch(batch_of);
    }
    prefetch(e);
    emit_phase(e);
    if (train_) reduce(events_[e]);
  }
  if (train_) decide();
}

// Weights ------------------------------------------------------------------------------------

void StepWriter::prefetch(size_t event) {
  const size_t horizon = event + static_cast<size_t>(sharding().prefetch);
  while (next_prefetch_ < events_.size() && next_prefetch_ <= horizon) {
    if (!bring(next_prefetch_, event)) break;
    ++next_prefetch_;
  }
  check(next_prefetch_ > event, "the weights of event {} found no slot", event);
}

/// Updates and gathers what `event` reads while `running` is about to run. False: a slot it needs
/// is still to be read.
bool StepWriter::bring(size_t event, size_t running) {
  const std::vector<int>& groups = event_groups_[event];
  if (!slots_free(groups, event, running)) return false;
  const int unit = events_[event].unit;
  std::vector<TransferPiece> pieces;
  std::vector<BufferAccess> accesses;
  for (int g : groups) {
    Residence& residence = residence_[static_cast<size_t>(g)];
    const GroupState& s = context_.group_state(g);
    if (!residence.updated) {
      emit_optimizer(g);
      residence.updated = true;
      if (s.value_whole && !s.optimizer_whole) {
        pieces.push_back(gather_in_place(g, s.value, context_.compute));
        accesses.push_back(updates(s.value));
      }
    }
    if (s.value_whole || residence.gathered) continue;
    pieces.push_back(gather_to_slot(g));
    accesses.push_back(reads(s.value));
    accesses.push_back(acquired(writes(weight_slot(g))));
    residence.gathered = true;
  }
  // A gather starts no earlier than the prefetch distance says.
  std::vector<int32_t> after;
  if (running > 0) after.push_back(event_entry_[running - 1]);
  emit_transfer({CommKind::all_gather, GroupAxis::shard, context_.compute, std::move(pieces), true,
                 unit, events_[event].micro_batch},
                std::move(accesses), after);
  return true;
}

bool StepWriter::next_use(int group, size_t after, size_t* found) const {
  const auto& uses = group_events_[static_cast<size_t>(group)];
  const auto at = std::upper_bound(uses.begin(), uses.end(), after);
  if (at == uses.end()) return false;
  *found = *at;
  return true;
}

bool StepWriter::slots_free(const std::vector<int>& groups, size_t event, size_t running) const {
  for (int g : groups) {
    const GroupState& s = context_.group_state(g);
    if (s.value_whole || residence_[static_cast<size_t>(g)].gathered) continue;
    for (size_t other = 0; other < residence_.size(); ++other) {
      const GroupState& o = context_.group_state(static_cast<int>(other));
      const bool same =
          o.weight_slot.pool == s.weight_slot.pool && o.weight_slot.slot == s.weight_slot.slot;
      if (!o.weight_slot.used() || !same || !residence_[other].gathered) continue;
      check(event > running, "two groups of one event share a slot");
      return false;  // released when its reader has run
    }
  }
  return true;
}

/// Whether a gathered group stays for its next use after `event`.
bool StepWriter::keep(int group, size_t event) const {
  size_t next = 0;
  if (!next_use(group, event, &next)) return false;
  const PoolPlace place = context_.group_state(group).weight_slot;
  int64_t distance = 0;
  for (size_t e = event + 1; e < next; ++e) {
    for (int other : event_groups_[e]) {
      const PoolPlace taken = context_.group_state(other).weight_slot;
      if (taken.pool == place.pool && taken.slot == place.slot && other != group) return false;
      distance += context_.group(other).size;
    }
  }
  if (sharding().reuse_distance) return distance <= *sharding().reuse_distance;
  // The only slot of its pool is better lent to others in between.
  return next == event + 1 ||
         context_.state->weight_pools[static_cast<size_t>(place.pool)].slots > 1;
}

void StepWriter::access_weights(size_t index, const Phase& phase,
                                std::vector<BufferAccess>& accesses) {
  const Event& event = events_[index];
  for (int g : groups_of(event.unit, phase, Bound::weight)) {
    const GroupState& s = context_.group_state(g);
    if (s.value_whole) {
      accesses.push_back(reads(s.value));
    } else if (keep(g, index)) {
      accesses.push_back(reads(weight_slot(g)));
    } else {
      accesses.push_back(released(reads(weight_slot(g))));
      residence_[static_cast<size_t>(g)].gathered = false;
    }
  }
}

// Phases -------------------------------------------------------------------------------------

void StepWriter::emit_batch(int micro_batch) {
  const auto place = static_cast<size_t>(micro_batch) % batch_.size();
  const int64_t entries = ops::BatchLayout{context_.capacity}.total();
  const Span host{batch_host_[place], DType::i32, 0, entries};
  const Span here{batch_[place], DType::i32, 0, entries};
  emit_port(StreamKind::copy_in, {PortKind::batch, host, -1, Plane::master, 0},
            {acquired(writes(host.buffer))}, micro_batch);
  emit_copy(StreamKind::copy_in, here, host,
            {released(reads(host.buffer)), acquired(writes(here.buffer))});
}

void StepWriter::access_states(const Event& event, const Phase& phase,
                               std::vector<BufferAccess>& accesses) {
  const Binding& binding = program_.bindings[static_cast<size_t>(event.unit)];
  const bool last_unit = event.unit + 1 == context_.model->num_units();
  const UnitPhases& phases = context_.phases(event.unit);
  const bool returns = train_ && !event.backward && !phases.backward.instructions.empty();
  if (binding.input >= 0 && (phase.uses(Bound::input) || last_unit)) {
    // Forward keeps the input where backward reads it again.
    const bool wanted = returns && phases.keeps_input;
    accesses.push_back(wanted ? reads(binding.input) : released(reads(binding.input)));
  }
  if (phase.uses(Bound::output)) accesses.push_back(acquired(writes(binding.output)));
  if (phase.uses(Bound::saved)) {
    accesses.push_back(event.backward ? released(reads(binding.saved))
                                      : acquired(writes(binding.saved)));
  }
  if (!event.backward) return;
  if (binding.output_gradient >= 0) {
    BufferAccess access = phase.writes(Bound::output_gradient) ? updates(binding.output_gradient)
                                                               : reads(binding.output_gradient);
    access.release = !phase.gradient_in_place;
    accesses.push_back(access);
  }
  if (!phase.gradient_in_place && phase.uses(Bound::input_gradient)) {
    accesses.push_back(acquired(writes(binding.input_gradient)));
  }
}

const SlotPlace& StepWriter::place_of(int unit, int slot) const {
  return context_.groups->places[static_cast<size_t>(unit)][static_cast<size_t>(slot)];
}

bool StepWriter::first_writer(int group, int unit) const {
  return gradient_first_[static_cast<size_t>(group)] == unit;
}
bool StepWriter::last_writer(int group, int unit) const {
  return gradient_last_[static_cast<size_t>(group)] == unit;
}

void StepWriter::access_gradients(const Event& event, const Phase& phase, Entry& entry,
                                  std::vector<BufferAccess>& accesses) {
  std::set<std::pair<int, int64_t>> written;  // slots of a unit may be one tensor
  for (int slot : phase.gradients_in_order()) {
    const SlotPlace& place = place_of(event.unit, slot);
    const int g = place.group;
    const bool in_slot = context_.group_state(g).gradient_slot.used();
    const bool set = first_writer(g, event.unit) && (in_slot || event.micro_batch == 0);
    if (written.emplace(g, place.offset).second && set) entry.set_slots |= uint64_t{1} << slot;
    const int32_t buffer = in_slot ? gradient_slot(g) : context_.group_state(g).gradient;
    BufferAccess access = set ? writes(buffer) : updates(buffer);
    access.acquire = in_slot && first_writer(g, event.unit);
    accesses.push_back(access);
  }
}

void StepWriter::emit_phase(size_t index) {
  const Event& event = events_[index];
  Entry entry;
  entry.kind = EntryKind::phase;
  entry.item = phase_index(event);
  const Phase& phase = program_.phases[static_cast<size_t>(entry.item)];
  entry.unit = event.unit;
  entry.micro_batch = event.micro_batch;
  entry.binding = event.unit;
  entry.frame = frames_[static_cast<size_t>(entry.item)];
  entry.set = train_ && event.micro_batch == 0;
  entry.what = event.backward ? (phase.uses(Bound::loss_sums) ? "loss" : "backward")
                              : (train_ ? "forward" : "evaluate");

  std::vector<BufferAccess> accesses;
  access_states(event, phase, accesses);
  access_weights(index, phase, accesses);
  if (event.backward) access_gradients(event, phase, entry, accesses);
  if (entry.frame >= 0) accesses.push_back(acquired(released(writes(entry.frame))));
  if (phase.uses(Bound::rope_table)) accesses.push_back(reads(program_.rope_table));
  if (phase.uses(Bound::loss_sums)) {
    accesses.push_back(entry.set ? writes(program_.loss_sums) : updates(program_.loss_sums));
  }
  entry.batch = batch_[static_cast<size_t>(event.micro_batch) % batch_.size()];
  const bool last_of_batch =
      index + 1 == events_.size() || events_[index + 1].micro_batch != event.micro_batch;
  // The last event releases the descriptor even where it does not read it.
  if (last_of_batch) {
    accesses.push_back(released(reads(entry.batch)));
  } else if (phase.uses(Bound::batch)) {
    accesses.push_back(reads(entry.batch));
  }
  event_entry_[index] = emitter_.emit(std::move(entry), std::move(accesses));
}

// Gradients ----------------------------------------------------------------------------------

/// Cuts a unit's reduction into transfers of at most reduce_bucket elements; who owns what stays.
std::vector<std::vector<TransferPiece>> StepWriter::into_buckets(
    const std::vector<TransferPiece>& pieces) const {
  if (!sharding().reduce_bucket) return {pieces};
  const int64_t most = round_up(
      std::max<int64_t>(1, *sharding().reduce_bucket / sharding().shard_ranks), kSliceAlignment);
  std::vector<std::vector<TransferPiece>> buckets;
  for (const TransferPiece& piece : pieces) {
    for (int64_t at = 0; at < piece.count; at += most) {
      TransferPiece part = piece;
      part.send_offset += at * size_of(DType::f32);
      part.receive_offset += at * size_of(DType::f32);
      part.count = std::min(most, piece.count - at);
      part.stride = piece.count;
      buckets.push_back({part});
    }
  }
  return buckets;
}

void StepWriter::reduce(const Event& event) {
  if (!event.backward || sharding().data_ranks() == 1) return;
  const bool micro = sharding().reduce_each_micro_batch;
  const bool last_batch = event.micro_batch + 1 == micro_batches_;
  if (!micro && !last_batch) return;
  const bool set = !micro || event.micro_batch == 0;
  const bool spread = sharding().shard_ranks > 1;
  // Scattered to the owners; summed over the copies; where every rank updates everything, back.
  std::vector<TransferPiece> scatter;
  std::vector<TransferPiece> sum;
  std::vector<TransferPiece> back;
  std::vector<BufferAccess> scatter_accesses;
  std::vector<BufferAccess> accesses;
  for (int g : groups_of(event.unit, phase_of(event), Bound::gradient)) {
    if (!last_writer(g, event.unit)) continue;
    const GroupState& s = context_.group_state(g);
    const bool in_slot = s.gradient_slot.used();
    const int32_t from = in_slot ? gradient_slot(g) : s.gradient;
    const int64_t own = s.gradient_whole ? slice_begin(g) * 4 : 0;
    scatter.push_back({from, s.gradient, 0, own, context_.group(g).slice});
    if (in_slot) scatter_accesses.push_back(released(reads(from)));
    scatter_accesses.push_back(in_slot && set ? writes(s.gradient) : updates(s.gradient));
    sum.push_back({s.gradient, s.gradient, own, own, context_.group(g).slice});
    back.push_back(gather_in_place(g, s.gradient, DType::f32));
    accesses.push_back(updates(s.gradient));
  }
  const auto wish = [&](CommKind kind, GroupAxis axis, std::vector<TransferPiece> pieces) {
    return TransferWish{kind, axis,       DType::f32,       std::move(pieces),
                        set,  event.unit, event.micro_batch};
  };
  if (spread) {
    std::vector<std::vector<TransferPiece>> buckets = into_buckets(scatter);
    for (std::vector<TransferPiece>& bucket : buckets) {
      const bool last = &bucket == &buckets.back();
      std::vector<BufferAccess> touched = scatter_accesses;
      for (BufferAccess& access : touched) access.release &= last;
      emit_transfer(wish(CommKind::reduce_scatter, GroupAxis::shard, std::move(bucket)),
                    std::move(touched));
    }
  }
  if (sharding().replicas > 1 && last_batch) {
    emit_transfer(wish(CommKind::all_reduce, GroupAxis::replica, std::move(sum)), accesses);
  }
  if (spread && sharding().stage == 0 && last_batch) {
    emit_transfer(wish(CommKind::all_gather, GroupAxis::shard, std::move(back)),
                  std::move(accesses));
  }
}

/// Norm, sums over the world, and what they decide for the next step.
void StepWriter::decide() {
  const State& state = *context_.state;
  const Span squares{state.sums, DType::f64, 0, 1};
  std::vector<FlatOp> ops(1);
  ops[0].op = ops::OpKind::zero;
  ops[0].args = {squares};
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
    if (sharding().replica != 0) continue;  // each element counts once in the world
    for (const Segment& part :
         segments(*context_.model, context_.group(g), begin, begin + context_.group(g).slice)) {
      ops.push_back(squares_of(part.begin, part.end));
    }
  }
  emit_ops("sums", std::move(ops), std::move(accesses), -1, workspace);
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

Program lower_train(const LoweringContext& context, int accumulation) {
  StepWriter writer(context, fmt::format("train[{}]", accumulation), true, accumulation);
  writer.write();
  return writer.finish();
}

Program lower_evaluate(const LoweringContext& context) {
  StepWriter writer(context, "evaluate", false, 1);
  writer.write();
  return writer.finish();
}

}  // namespace trireme::plan
