// Which steps end with a line of the log, and what the line says.
#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "metrics/record.h"

namespace trireme::metrics {

struct LogPace {
  config::Strategy strategy = config::Strategy::steps;
  int64_t steps = 500;      // resolved: a number of steps
  bool first_step = false;  // also the first of all
};

class LogWindow {
 public:
  explicit LogWindow(const LogPace& pace) : pace_(pace) {}
  /// Takes the next step. A line where one is due; the window is then empty again. Skipped steps
  /// have no part in the loss.
  std::optional<LogRecord> add(const StepRecord& record);

 private:
  bool due(const StepRecord& record) const;

  LogPace pace_;
  double loss_sum_ = 0;
  int64_t trained_tokens_ = 0;
  int64_t input_tokens_ = 0;
  double seconds_ = 0;
  int64_t all_tokens_ = 0;  // since the run began
};

}  // namespace trireme::metrics
