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
    : ProgramWriter(context, std::move(name)),
      train_(train),
      micro_batches_(micro_batches),
      walk_(list_events(context, train, micro_batches)),
      buffers_(context, walk_, emitter_, train) {
  residence_.resize(context.groups->groups.size());
  for (size_t g = 0; g < residence_.size(); ++g) {
    residence_[g].updated = !train || !context.group(static_cast<int>(g)).key.trainable;
  }
  gradient_first_.assign(residence_.size(), -1);
  gradient_last_.assign(residence_.size(), -1);
  for (auto& list : phase_of_variant_) list.assign(context.variants.size(), -1);
  program_.loss_sums = train ? context.state->sums : context.state->eval_sums;
  program_.loss_sums_offset = train ? ops::index(ops::Sum::loss) * size_of(DType::f64) : 0;
  index_events();
}

void StepWriter::index_events() {
  group_events_.resize(residence_.size());
  for (size_t e = 0; e < walk_.events.size(); ++e) {
    const Event& event = walk_.events[e];
    event_groups_.push_back(groups_of(event.unit, phase_of(event), Bound::weight));
    for (int g : event_groups_.back()) group_events_[static_cast<size_t>(g)].push_back(e);
    for (int g : groups_of(event.unit, phase_of(event), Bound::gradient)) {
      int& first = gradient_first_[static_cast<size_t>(g)];
      if (first < 0) first = event.unit;
      gradient_last_[static_cast<size_t>(g)] = event.unit;
    }
  }
  event_entry_.assign(walk_.events.size(), -1);
  if (train_) check_gradients();
}

/// A gradient that nobody writes would be whatever its memory held before.
void StepWriter::check_gradients() const {
  std::set<std::pair<int, int64_t>> written;
  for (const Event& event : walk_.events) {
    if (event.micro_batch > 0) continue;
    for (int slot : phase_of(event).slots(Bound::gradient)) {
      const SlotPlace& place = place_of(event.unit, slot);
      written.emplace(place.group, place.offset);
    }
  }
  for (int u : context_.pipeline->own_units()) {
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
  if (event.pass == Pass::forward) return phases.forward;
  return event.pass == Pass::backward ? phases.backward : phases.weight_gradient;
}

int32_t StepWriter::phase_index(const Event& event) {
  int32_t& index = phase_of_variant_[static_cast<size_t>(event.pass)][static_cast<size_t>(
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
  for (int slot : phase.slots(bound)) found.push_back(place_of(unit, slot).group);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

int32_t StepWriter::binding_of(const Event& event) {
  Binding binding = buffers_.states(event);
  const auto [at, fresh] = bindings_.try_emplace(
      {event.unit, binding.input, binding.output, binding.saved, binding.deferred,
       binding.output_gradient, binding.input_gradient},
      static_cast<int32_t>(program_.bindings.size()));
  if (!fresh) return at->second;
  for (const SlotPlace& place : context_.groups->places[static_cast<size_t>(event.unit)]) {
    const GroupState& s = context_.group_state(place.group);
    const int32_t value = s.value_whole ? s.value : weight_slot(place.group);
    binding.weights.push_back(
        {value, context_.compute, place.offset * size_of(context_.compute), 0});
    const int32_t gradient =
        s.gradient_slot.used() && train_ ? gradient_slot(place.group) : s.gradient;
    binding.gradients.push_back({gradient, DType::f32, place.offset * 4, 0});
  }
  program_.bindings.push_back(std::move(binding));
  return at->second;
}

void StepWriter::write() {
  for (const Action& action : walk_.actions) {
    while (next_batch_ <= action.micro_batch) emit_batch(next_batch_++);
    if (action.kind != ActionKind::run) {
      emit_passing(action);
      continue;
    }
    prefetch(action.event);
    emit_phase(action.event);
    if (train_) reduce(walk_.events[action.event]);
  }
  if (train_) decide();
}

// Weights ------------------------------------------------------------------------------------

void StepWriter::prefetch(size_t event) {
  const size_t horizon = event + static_cast<size_t>(sharding().prefetch);
  while (next_prefetch_ < walk_.events.size() && next_prefetch_ <= horizon) {
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
  const int unit = walk_.events[event].unit;
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
                 unit, walk_.events[event].micro_batch},
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
  if (next < next_prefetch_) return true;  // which found it gathered
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
  const Event& event = walk_.events[index];
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
  const int64_t entries = ops::BatchLayout{context_.capacity}.total();
  const Span host{buffers_.batch_host(micro_batch), DType::i32, 0, entries};
  const Span here{buffers_.batch(micro_batch), DType::i32, 0, entries};
  emit_port(StreamKind::copy_in, {PortKind::batch, host, -1, Plane::master, 0},
            {acquired(writes(host.buffer))}, micro_batch);
  emit_copy(StreamKind::copy_in, here, host,
            {released(reads(host.buffer)), acquired(writes(here.buffer))});
}

/// Hidden states, or their gradients, to or from the neighbouring stage.
void StepWriter::emit_passing(const Action& action) {
  const int chunk = action.chunk;
  const int m = action.micro_batch;
  const auto pass = [&](CommKind kind, GroupAxis axis, int32_t buffer) {
    TransferWish wish{kind, axis, context_.compute};
    wish.pieces = {{buffer, buffer, 0, 0, context_.model->dims[model::Dim::hidden]}};
    wish.per_row = true;
    wish.micro_batch = m;
    emit_transfer(std::move(wish), {kind == CommKind::send ? released(reads(buffer))
                                                           : acquired(writes(buffer))});
  };
  switch (action.kind) {
    case ActionKind::receive_input:
      return pass(CommKind::recv, GroupAxis::from_previous, buffers_.chunk_input(chunk, m));
    case ActionKind::send_output:
      return pass(CommKind::send, GroupAxis::to_next, buffers_.chunk_output(chunk, m));
    case ActionKind::receive_gradient:
      return pass(CommKind::recv, GroupAxis::from_next, buffers_.chunk_output_gradient(chunk, m));
    case ActionKind::send_gradient:
      return pass(CommKind::send, GroupAxis::to_previous, buffers_.chunk_input_gradient(chunk, m));
    case ActionKind::run:
      return;
  }
}

Pass StepWriter::last_pass(int unit, Bound bound) const {
  const UnitPhases& phases = context_.phases(unit);
  if (train_ && phases.weight_gradient.uses(bound)) return Pass::weight_gradient;
  if (train_ && phases.backward.uses(bound)) return Pass::backward;
  return Pass::forward;
}

void StepWriter::access_states(const Event& event, const Phase& phase, const Binding& binding,
                               std::vector<BufferAccess>& accesses) {
  const auto last = [&](Bound bound, BufferAccess access) {
    access.release = last_pass(event.unit, bound) == event.pass;
    return access;
  };
  if (binding.input >= 0 && phase.uses(Bound::input)) {
    accesses.push_back(last(Bound::input, reads(binding.input)));
  }
  if (phase.uses(Bound::output)) accesses.push_back(acquired(writes(binding.output)));
  if (phase.uses(Bound::saved)) {
    accesses.push_back(event.pass == Pass::forward ? acquired(writes(binding.saved))
                                                   : last(Bound::saved, reads(binding.saved)));
  }
  if (phase.uses(Bound::deferred)) {
    accesses.push_back(event.pass == Pass::backward ? acquired(writes(binding.deferred))
                                                    : released(reads(binding.deferred)));
  }
  if (event.pass != Pass::backward) return;
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
  const Event& event = walk_.events[index];
  Entry entry;
  entry.kind = EntryKind::phase;
  entry.item = phase_index(event);
  const Phase& phase = program_.phases[static_cast<size_t>(entry.item)];
  entry.unit = event.unit;
  entry.micro_batch = event.micro_batch;
  entry.binding = binding_of(event);
  entry.frame = frames_[static_cast<size_t>(entry.item)];
  entry.set = train_ && event.micro_batch == 0;
  entry.what = what_of(event, phase);

  std::vector<BufferAccess> accesses;
  access_states(event, phase, program_.bindings[static_cast<size_t>(entry.binding)], accesses);
  access_weights(index, phase, accesses);
  if (event.pass != Pass::forward) access_gradients(event, phase, entry, accesses);
  if (entry.frame >= 0) accesses.push_back(acquired(released(writes(entry.frame))));
  if (phase.uses(Bound::rope_table)) accesses.push_back(reads(program_.rope_table));
  if (phase.uses(Bound::loss_sums)) {
    accesses.push_back(entry.set ? writes(program_.loss_sums) : updates(program_.loss_sums));
  }
  entry.batch = buffers_.batch(event.micro_batch);
  // The last event releases the descriptor even where it does not read it.
  if (walk_.last_of_batch[static_cast<size_t>(event.micro_batch)] == index) {
    accesses.push_back(released(reads(entry.batch)));
  } else if (phase.uses(Bound::batch)) {
    accesses.push_back(reads(entry.batch));
  }
  for (const BufferAccess& access : accesses) {
    if (access.release) buffers_.release(access.buffer);
  }
  event_entry_[index] = emitter_.emit(std::move(entry), std::move(accesses));
}

std::string_view StepWriter::what_of(const Event& event, const Phase& phase) const {
  if (!train_) return "evaluate";
  if (event.pass == Pass::forward) return "forward";
  if (event.pass == Pass::weight_gradient) return "weight gradient";
  if (phase.uses(Bound::loss_sums)) return "loss";
  return context_.phases(event.unit).weight_gradient.instructions.empty() ? "backward"
                                                                          : "input gradient";
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
  if (event.pass == Pass::forward || sharding().data_ranks() == 1) return;
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
    TransferWish made{kind, axis,       DType::f32,       std::move(pieces),
                      set,  event.unit, event.micro_batch};
    if (kind != CommKind::all_gather) made.wire = sharding().gradient_wire;  // sums go back whole
    return made;
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
