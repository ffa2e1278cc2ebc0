#include "plan/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "config/words.h"

namespace trireme::plan {

namespace {

/// The k-th (chunk, micro-batch) of the common order of forwards, or of backwards: `stages`
/// micro-batches through one chunk, the same through the next.
Slot ordered(const ScheduleRequest& request, Work work, int64_t k) {
  const int64_t round = int64_t{request.stages} * request.chunks;
  const auto turn = static_cast<int>(k % round / request.stages);
  const int chunk = work == Work::forward ? turn : request.chunks - 1 - turn;
  return {work, chunk, static_cast<int>(k / round * request.stages + k % request.stages)};
}

/// One forward, one backward after `warm_up` forwards. The last round of micro-batches may be
/// short: the order is that of whole rounds without the micro-batches that there are not, which
/// waits for nothing new.
std::vector<Slot> alternate(const ScheduleRequest& request, int64_t warm_up) {
  const int64_t total = round_up(request.micro_batches, request.stages) * request.chunks;
  warm_up = std::min(total, warm_up);
  std::vector<Slot> slots;
  const auto add = [&](Work work, int64_t k) {
    const Slot slot = ordered(request, work, k);
    if (slot.micro_batch < request.micro_batches) slots.push_back(slot);
  };
  for (int64_t k = 0; k < warm_up; ++k) add(Work::forward, k);
  for (int64_t k = 0; k < total; ++k) {
    if (warm_up + k < total) add(Work::forward, warm_up + k);
    add(Work::backward, k);
  }
  return slots;
}

/// 1F1B with each backward as an input gradient, and `stage` weight gradients behind it.
std::vector<Slot> split_backward(const std::vector<Slot>& whole, int stage, int micro_batches) {
  std::vector<Slot> slots;
  int next = 0;
  for (const Slot& slot : whole) {
    if (slot.work == Work::forward) {
      slots.push_back(slot);
      continue;
    }
    slots.push_back({Work::input_gradient, 0, slot.micro_batch});
    if (slot.micro_batch - next >= stage) slots.push_back({Work::weight_gradient, 0, next++});
  }
  while (next < micro_batches) slots.push_back({Work::weight_gradient, 0, next++});
  return slots;
}

void check_request(const ScheduleRequest& request) {
  check(request.stages >= 1 && request.chunks >= 1 && request.micro_batches >= 1,
        "a schedule of {} stages, {} chunks, {} micro-batches", request.stages, request.chunks,
        request.micro_batches);
  check(
      request.chunks == 1 || (request.kind == PipelineSchedule::interleaved && request.stages > 1),
      "{} chunks in a schedule that has one", request.chunks);
}

}  // namespace

std::string name_of(const ScheduleRequest& request) {
  return fmt::format(
      "{}: {} stages{}, {} micro-batches", config::word_of(request.kind), request.stages,
      request.chunks > 1 ? fmt::format(" x {} chunks", request.chunks) : "", request.micro_batches);
}

std::vector<Slot> schedule_of(const ScheduleRequest& request, int stage) {
  check_request(request);
  check(stage >= 0 && stage < request.stages, "stage {} of {}", stage, request.stages);
  const int64_t behind = request.stages - stage - 1;
  if (request.chunks == 1) {
    const std::vector<Slot> slots = alternate(request, behind);
    if (request.kind != PipelineSchedule::zero_bubble) return slots;
    return split_backward(slots, stage, request.micro_batches);
  }
  // A micro-batch passes every stage behind this one and comes back before its next chunk starts.
  return alternate(request, 2 * behind + int64_t{request.chunks - 1} * request.stages);
}

int in_flight(const std::vector<Slot>& slots, int chunk) {
  const bool split = std::any_of(slots.begin(), slots.end(), [](const Slot& slot) {
    return slot.work == Work::weight_gradient;
  });
  int held = 0;
  int most = 0;
  for (const Slot& slot : slots) {
    if (slot.chunk != chunk) continue;
    if (slot.work == Work::forward) most = std::max(most, ++held);
    if (slot.work == (split ? Work::weight_gradient : Work::backward)) --held;
  }
  return most;
}

}  // namespace trireme::plan
