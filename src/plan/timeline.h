// When a pipeline schedule does what, and how long its ranks stand still. Pure.
#pragma once

#include <vector>

#include "plan/schedule.h"

namespace trireme::plan {

/// What one micro-batch costs, in any unit of time.
struct WorkCosts {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;

  WorkCosts& operator+=(const WorkCosts& other);
  double total() const { return forward + input_gradient + weight_gradient; }
  double of(Work work) const;
};

struct TimedSlot {
  Slot slot;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedSlot>> stages;  // in program order
  double makespan = 0;

  double busy(int stage) const;
  /// Part of the makespan in which a stage stands still, 0 to 1.
  double bubble(int stage) const { return 1 - busy(stage) / makespan; }
  /// Mean length of a forward, over all stages.
  double mean_forward() const;
};

/// Runs every stage's slots in order, each as soon as what it needs is there: forward, the forward
/// of the virtual stage before; backward and input gradient, its own forward and the same of the
/// virtual stage after; weight gradient, its input gradient. Transfers take no time. `costs`: one a
/// virtual stage. BugError when the stages wait for each other for ever.
Timeline simulate(const ScheduleRequest& request, const std::vector<WorkCosts>& costs);

/// How long a stage stands still if all stages are alike; `stage`: costs of one whole stage, all
/// its chunks (P stages, v chunks, m micro-batches):
///   1F1B         (P - 1) (F + B + W)
///   interleaved  (P - 1) (F + B + W) / v, where m is a multiple of P; more otherwise
///   zero bubble  (P - 1) (F + B) - (min(m, P) - 1) W, where F, B and W are alike
/// Narayanan et al. 2021 (arXiv:2104.04473), Qi et al. 2023 (arXiv:2401.10241).
double bubble_time(const ScheduleRequest& request, const WorkCosts& stage);
/// The same as part of the makespan, 0 to 1.
double bubble_share(const ScheduleRequest& request, const WorkCosts& stage);

}  // namespace trireme::plan
