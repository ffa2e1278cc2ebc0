// The transient buffers of a step, and what they mean to each phase.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "plan/emitter.h"
#include "plan/step_events.h"

namespace trireme::plan {

/// Buffers are made when first asked for.
class StepBuffers {
 public:
  StepBuffers(const LoweringContext& context, const StepEvents& walk, Emitter& emitter, bool train);

  /// Hidden states that a chunk receives and hands on, and their gradients.
  int32_t chunk_input(int chunk, int micro_batch);
  int32_t chunk_output(int chunk, int micro_batch);
  int32_t chunk_output_gradient(int chunk, int micro_batch);
  int32_t chunk_input_gradient(int chunk, int micro_batch);
  /// Batch descriptors.
  int32_t batch(int micro_batch);
  int32_t batch_host(int micro_batch);
  /// What the operands of an event's phase mean, but for weights and gradients of parameters.
  Binding states(const Event& event);

 private:
  const UnitRange& units(int chunk) const { return context_.pipeline->units(chunk); }
  const Turns& turns(int chunk) const { return walk_.turns[static_cast<size_t>(chunk)]; }
  int32_t made(const std::string& name, int turn, Owner owner, Space space, int64_t bytes);
  int32_t hidden(std::string_view kind, int unit, int turn);
  int32_t unit_output(int unit, int chunk, int micro_batch);
  int32_t output_gradient(int unit, int chunk, int micro_batch);
  int32_t input_gradient(int unit, int chunk, int micro_batch);
  int passing_turn(int micro_batch) const;

  const LoweringContext& context_;
  const StepEvents& walk_;
  Emitter& emitter_;
  bool train_;
  int64_t hidden_bytes_;
  int64_t batch_bytes_;
  std::map<std::string, int32_t> made_;
};

}  // namespace trireme::plan
