// After which steps a run evaluates and saves. Every rank decides alike.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "data/step_plan.h"

namespace trireme::train {

class Pace {
 public:
  /// ConfigError where shares of all steps, rounded up, do not save every model that may be best.
  Pace(const config::RunConfig& config, const data::StepPlan& plan);

  int64_t logging_steps() const { return logging_steps_; }
  int64_t eval_steps() const { return eval_steps_; }
  int64_t save_steps() const { return save_steps_; }

  /// Of the last of all steps too.
  bool ends_epoch(int64_t steps_done) const;
  bool evaluates(int64_t steps_done) const;
  /// With save_strategy best only an evaluation tells, and this is false.
  bool saves(int64_t steps_done) const;

 private:
  const config::RunConfig& config_;
  const data::StepPlan& plan_;
  int64_t logging_steps_;
  int64_t eval_steps_;
  int64_t save_steps_;
};

}  // namespace trireme::train
