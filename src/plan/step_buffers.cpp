#include "plan/step_buffers.h"

#include <algorithm>

#include "base/math.h"

namespace trireme::plan {

StepBuffers::StepBuffers(const LoweringContext& context, const StepEvents& walk, Emitter& emitter,
                         bool train)
    : context_(context),
      walk_(walk),
      emitter_(emitter),
      train_(train),
      hidden_bytes_(context.model->dims.at(model::Dim::sequence, context.capacity.tokens) *
                    context.model->dims[model::Dim::hidden] * size_of(context.compute)),
      batch_bytes_(ops::BatchLayout{context.capacity}.total() * size_of(DType::i32)) {}

int32_t StepBuffers::made(const std::string& name, int turn, Owner owner, Space space,
                          int64_t bytes) {
  const std::string whole = turn == 0 ? name : fmt::format("{}.{}", name, turn);
  const auto [at, fresh] = made_.try_emplace(whole, -1);
  if (fresh) at->second = emitter_.add_buffer(whole, owner, space, bytes);
  return at->second;
}

/// The buffer that this unit and micro-batch took; it takes one when it has none yet.
int32_t StepBuffers::pooled(Kind kind, int unit, int micro_batch, int64_t bytes) {
  const auto [taken, fresh] = taken_.try_emplace({unit, micro_batch});
  if (fresh) taken->second.fill(-1);
  int32_t& buffer = taken->second[kind];
  if (buffer >= 0) return buffer;
  const Pool pool = {kind, bytes};
  std::set<int32_t>& free = free_[pool];
  if (!free.empty()) {
    buffer = free.extract(free.begin()).value();
    return buffer;
  }
  constexpr std::array<std::string_view, kNumKinds> kNames = {"x", "saved", "deferred"};
  const std::string name =
      fmt::format("{}.{}", kNames[kind], context_.model->units[static_cast<size_t>(unit)].name);
  buffer = made(name, made_by_[{kind, unit}]++, Owner::activations, Space::device, bytes);
  pool_of_.emplace(buffer, pool);
  return buffer;
}

void StepBuffers::release(int32_t buffer) {
  const auto pool = pool_of_.find(buffer);
  if (pool != pool_of_.end()) free_[pool->second].insert(buffer);
}

int32_t StepBuffers::hidden(std::string_view kind, int unit, int turn) {
  return made(fmt::format("{}.{}", kind, context_.model->units[static_cast<size_t>(unit)].name),
              turn, Owner::activations, Space::device, hidden_bytes_);
}

/// What passes between stages waits in two: one arrives or leaves while the other is worked on.
int StepBuffers::passing_turn(int micro_batch) const {
  return context_.pipeline->stages > 1 ? micro_batch % 2 : 0;
}

int32_t StepBuffers::chunk_input(int chunk, int micro_batch) {
  // One more than are kept, so that the next arrives in time.
  return hidden("x.in", units(chunk).begin, micro_batch % (kept(chunk) + 1));
}

int32_t StepBuffers::chunk_output(int chunk, int micro_batch) {
  return hidden("x.out", units(chunk).end - 1, passing_turn(micro_batch));
}

int32_t StepBuffers::chunk_output_gradient(int chunk, int micro_batch) {
  return hidden("d.in", units(chunk).end - 1, passing_turn(micro_batch));
}

int32_t StepBuffers::chunk_input_gradient(int chunk, int micro_batch) {
  return input_gradient(units(chunk).begin, chunk, micro_batch);
}

int32_t StepBuffers::unit_output(int unit, int chunk, int micro_batch) {
  if (unit + 1 == units(chunk).end) {
    return context_.pipeline->last(chunk) ? -1 : chunk_output(chunk, micro_batch);
  }
  return pooled(kHidden, unit, micro_batch, hidden_bytes_);
}

int32_t StepBuffers::output_gradient(int unit, int chunk, int micro_batch) {
  if (unit + 1 < units(chunk).end) return input_gradient(unit + 1, chunk, micro_batch);
  return context_.pipeline->last(chunk) ? -1 : chunk_output_gradient(chunk, micro_batch);
}

int32_t StepBuffers::input_gradient(int unit, int chunk, int micro_batch) {
  const Phase& phase = context_.phases(unit).backward;
  if (phase.gradient_in_place) return output_gradient(unit, chunk, micro_batch);
  if (!phase.uses(Bound::input_gradient)) return -1;
  return hidden("d", unit, passing_turn(micro_batch));
}

int32_t StepBuffers::batch(int micro_batch) {
  return made(fmt::format("batch.{}", micro_batch % walk_.batches), 0, Owner::batch, Space::device,
              batch_bytes_);
}

int32_t StepBuffers::batch_host(int micro_batch) {
  return made(fmt::format("batch.host.{}", micro_batch % walk_.batches), 0, Owner::batch,
              Space::pinned, batch_bytes_);
}

Binding StepBuffers::states(const Event& event) {
  const int unit = event.unit;
  const int chunk = event.chunk;
  const int micro_batch = event.micro_batch;
  const UnitRange& range = units(chunk);
  const UnitPhases& phases = context_.phases(unit);
  Binding states;
  if (unit > range.begin) {
    states.input = unit_output(unit - 1, chunk, micro_batch);
  } else if (!context_.pipeline->first(chunk)) {
    states.input = chunk_input(chunk, micro_batch);
  }
  states.output = unit_output(unit, chunk, micro_batch);
  if (!train_) return states;
  if (phases.saved_bytes > 0) {
    states.saved = pooled(kSaved, unit, micro_batch, phases.saved_bytes);
  }
  if (phases.deferred_bytes > 0 && event.pass != Pass::forward) {
    states.deferred = pooled(kDeferred, unit, micro_batch, phases.deferred_bytes);
  }
  states.output_gradient = output_gradient(unit, chunk, micro_batch);
  states.input_gradient = input_gradient(unit, chunk, micro_batch);
  return states;
}

}  // namespace trireme::plan
