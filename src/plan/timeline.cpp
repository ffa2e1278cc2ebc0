#include "plan/timeline.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::plan {

namespace {

/// Ends of forwards and of input gradients, by virtual stage and micro-batch; < 0: not yet.
struct Ends {
  explicit Ends(const ScheduleRequest& request)
      : micro_batches(request.micro_batches),
        forward(static_cast<size_t>(request.virtual_stages() * request.micro_batches), -1),
        backward(forward.size(), -1) {}
  size_t at(int virtual_stage, int micro_batch) const {
    return static_cast<size_t>(virtual_stage * micro_batches + micro_batch);
  }
  int micro_batches;
  std::vector<double> forward;
  std::vector<double> backward;
};

/// When everything that a slot needs from others is there; < 0: not yet.
double ready(const ScheduleRequest& request, const Ends& ends, const Slot& slot, int stage) {
  const int here = slot.chunk * request.stages + stage;
  const auto both = [](double a, double b) { return a < 0 || b < 0 ? -1 : std::max(a, b); };
  switch (slot.work) {
    case Work::forward:
      return here == 0 ? 0 : ends.forward[ends.at(here - 1, slot.micro_batch)];
    case Work::weight_gradient:
      return ends.backward[ends.at(here, slot.micro_batch)];
    default: {
      const double own = ends.forward[ends.at(here, slot.micro_batch)];
      if (here + 1 == request.virtual_stages()) return own;
      return both(own, ends.backward[ends.at(here + 1, slot.micro_batch)]);
    }
  }
}

}  // namespace

WorkCosts& WorkCosts::operator+=(const WorkCosts& other) {
  forward += other.forward;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  return *this;
}

double WorkCosts::of(Work work) const {
  switch (work) {
    case Work::forward:
      return forward;
    case Work::backward:
      return input_gradient + weight_gradient;
    case Work::input_gradient:
      return input_gradient;
    case Work::weight_gradient:
      return weight_gradient;
  }
  return 0;
}

double Timeline::busy(int stage) const {
  double sum = 0;
  for (const TimedSlot& timed : stages[static_cast<size_t>(stage)]) sum += timed.end - timed.start;
  return sum;
}

double Timeline::mean_forward() const {
  double sum = 0;
  int64_t count = 0;
  for (const auto& stage : stages) {
    for (const TimedSlot& timed : stage) {
      if (timed.slot.work != Work::forward) continue;
      sum += timed.end - timed.start;
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

Timeline simulate(const ScheduleRequest& request, const std::vector<WorkCosts>& costs) {
  check(static_cast<int>(costs.size()) == request.virtual_stages(), "{} costs of {} virtual stages",
        costs.size(), request.virtual_stages());
  std::vector<std::vector<Slot>> slots;
  size_t left = 0;
  for (int stage = 0; stage < request.stages; ++stage) {
    slots.push_back(schedule_of(request, stage));
    left += slots.back().size();
  }
  Ends ends(request);
  Timeline timeline;
  timeline.stages.resize(slots.size());
  while (left > 0) {
    const size_t before = left;
    for (int stage = 0; stage < request.stages; ++stage) {
      const std::vector<Slot>& order = slots[static_cast<size_t>(stage)];
      std::vector<TimedSlot>& done = timeline.stages[static_cast<size_t>(stage)];
      while (done.size() < order.size()) {
        const Slot& slot = order[done.size()];
        const double from = ready(request, ends, slot, stage);
        if (from < 0) break;
        const int here = slot.chunk * request.stages + stage;
        const double start = std::max(from, done.empty() ? 0.0 : done.back().end);
        const double end = start + costs[static_cast<size_t>(here)].of(slot.work);
        if (slot.work == Work::forward) {
          ends.forward[ends.at(here, slot.micro_batch)] = end;
        } else if (slot.work != Work::weight_gradient) {
          ends.backward[ends.at(here, slot.micro_batch)] = end;
        }
        done.push_back({slot, start, end});
        timeline.makespan = std::max(timeline.makespan, end);
        --left;
      }
    }
    check(left < before, "{} slots of a schedule wait for each other for ever", left);
  }
  return timeline;
}

double bubble_time(const ScheduleRequest& request, const WorkCosts& stage) {
  const double others = request.stages - 1;
  if (request.kind == PipelineSchedule::zero_bubble) {
    const int hidden = std::min(request.micro_batches, request.stages) - 1;
    return std::max(
        0.0, others * (stage.forward + stage.input_gradient) - hidden * stage.weight_gradient);
  }
  return others * stage.total() / request.chunks;
}

double bubble_share(const ScheduleRequest& request, const WorkCosts& stage) {
  const double bubble = bubble_time(request, stage);
  return bubble / (bubble + request.micro_batches * stage.total());
}

}  // namespace trireme::plan
