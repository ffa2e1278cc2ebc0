// The walk of a step in order: which phase runs when, what passes between stages, and which of its
// turns every buffer is on.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/lowering.h"

namespace trireme::plan {

enum class Pass : uint8_t { forward, backward, weight_gradient };
inline constexpr int kNumPasses = 3;

/// One phase to run. Under `backward` the head runs all of it, and a split backward its first half.
struct Event {
  int unit = 0;
  int chunk = 0;
  int micro_batch = 0;
  Pass pass = Pass::forward;
};

enum class ActionKind : uint8_t {
  run,
  receive_input,
  send_output,
  receive_gradient,
  send_gradient,
};
struct Action {
  ActionKind kind = ActionKind::run;
  size_t event = 0;  // run
  int chunk = 0;
  int micro_batch = 0;
};

struct StepEvents {
  std::vector<Event> events;
  std::vector<Action> actions;
  /// Per chunk, how many micro-batches it keeps from forward to the end of backward: where buffers
  /// take turns, micro-batch m uses number m mod that.
  std::vector<int> kept;
  int batches = 1;                     // batch descriptors
  std::vector<size_t> last_of_batch;   // per micro-batch: its last event
};

/// `train` false: one micro-batch of evaluation.
StepEvents list_events(const LoweringContext& context, bool train, int micro_batches);

}  // namespace trireme::plan
