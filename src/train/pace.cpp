#include "train/pace.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/schedule.h"

namespace trireme::train {

using config::SaveStrategy;
using config::Strategy;

Pace::Pace(const config::RunConfig& config, const data::StepPlan& plan)
    : config_(config),
      plan_(plan),
      logging_steps_(
          std::max<int64_t>(1, config::count_steps(config.logging_steps, plan.total_steps()))),
      eval_steps_(std::max<int64_t>(1, config::count_steps(config.eval_steps, plan.total_steps()))),
      save_steps_(
          std::max<int64_t>(1, config::count_steps(config.save_steps, plan.total_steps()))) {
  const bool by_steps = config.save_strategy == SaveStrategy::steps;
  if (config.load_best_model_at_end && by_steps && save_steps_ % eval_steps_ != 0) {
    throw ConfigError(
        "load_best_model_at_end", "true",
        fmt::format("of {} steps, save_steps {} makes {} and eval_steps {} makes {}, of which the "
                    "first must be a multiple",
                    plan.total_steps(), config.save_steps, save_steps_, config.eval_steps,
                    eval_steps_));
  }
}

bool Pace::ends_epoch(int64_t steps_done) const {
  return steps_done % plan_.steps_per_epoch() == 0 || steps_done == plan_.total_steps();
}

bool Pace::evaluates(int64_t steps_done) const {
  if (config_.eval_strategy == Strategy::epoch) {
    return ends_epoch(steps_done) && plan_.epoch_after(steps_done - 1) >= config_.eval_delay;
  }
  return config_.eval_strategy == Strategy::steps && steps_done % eval_steps_ == 0 &&
         static_cast<double>(steps_done) >= config_.eval_delay;
}

bool Pace::saves(int64_t steps_done) const {
  const bool last = steps_done == plan_.total_steps();
  if (config_.save_strategy == SaveStrategy::epoch) return ends_epoch(steps_done);
  return config_.save_strategy == SaveStrategy::steps && (last || steps_done % save_steps_ == 0);
}

}  // namespace trireme::train
