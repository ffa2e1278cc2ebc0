// The transient buffers of a step, and what they mean to each phase.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "plan/emitter.h"
#include "plan/step_events.h"

namespace trireme::plan {

/// Buffers are made when first asked for. What only the compute stream touches and a micro-batch
/// keeps until its backward pass (hidden states between units, saved and deferred activations) is
/// pooled: a unit takes the first free buffer of its size, whichever unit made it. So the chunks of
/// an interleaved pipeline, of which each keeps most at another time, need what all keep at once.
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
  /// Events are asked for in the order of the walk.
  Binding states(const Event& event);
  /// The life of a buffer has ended: a pooled one may be taken again.
  void release(int32_t buffer);

 private:
  const UnitRange& units(int chunk) const { return context_.pipeline->units(chunk); }
  int kept(int chunk) const { return walk_.kept[static_cast<size_t>(chunk)]; }
  enum Kind { kHidden, kSaved, kDeferred, kNumKinds };
  using Pool = std::pair<Kind, int64_t>;  // and bytes of its buffers

  int32_t pooled(Kind kind, int unit, int micro_batch, int64_t bytes);
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
  std::map<std::pair<int, int>, std::array<int32_t, kNumKinds>> taken_;  // by unit and micro-batch
  std::map<Pool, std::set<int32_t>> free_;
  std::map<int32_t, Pool> pool_of_;              // of a buffer
  std::map<std::pair<Kind, int>, int> made_by_;  // how many pooled buffers a unit made
};

}  // namespace trireme::plan
