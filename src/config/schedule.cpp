#include "config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trireme::config {
namespace {

/// Share of the peak rate after `step` updates of `total`.
double rate_factor(Scheduler scheduler, int64_t step, int64_t warmup, int64_t total) {
  if (scheduler == Scheduler::constant) return 1.0;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, total - warmup));
  switch (scheduler) {
    case Scheduler::linear:
      return std::max(0.0, static_cast<double>(total - step) / decay_steps);
    case Scheduler::cosine: {
      const double progress = static_cast<double>(step - warmup) / decay_steps;
      return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    }
    case Scheduler::constant:
    case Scheduler::constant_with_warmup:
      break;
  }
  return 1.0;
}

}  // namespace

int64_t count_steps(double steps_or_share, int64_t total_steps) {
  if (steps_or_share >= 1) return static_cast<int64_t>(steps_or_share);
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * steps_or_share));
}

std::vector<double> schedule_table(const RunConfig& config, int64_t total_steps) {
  check(total_steps >= 0, "schedule_table: {} steps", total_steps);
  const int64_t warmup = count_steps(config.warmup_steps, total_steps);
  std::vector<double> rates(static_cast<size_t>(total_steps) + 1);
  for (int64_t step = 0; step <= total_steps; ++step) {
    rates[static_cast<size_t>(step)] =
        config.learning_rate * rate_factor(config.lr_scheduler_type, step, warmup, total_steps);
  }
  return rates;
}

}  // namespace trireme::config
