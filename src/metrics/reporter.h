// What the training loop talks to: passes every record on to the sinks of rank 0, and sums up.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "metrics/metrics_file.h"
#include "metrics/record.h"

namespace trireme::metrics {

struct ReporterOptions {
  int rank = 0;
  int64_t logging_steps = 500;  // resolved: a number of steps
  int64_t resumed_step = 0;
};

/// On ranks other than 0 it holds no sinks: every call returns at once and touches nothing.
/// Errors: DeviceError naming the file (a full disk ends the run; it is not quietly unwatched).
class Reporter {
 public:
  /// The console, output_dir/metrics.jsonl, and what `report_to` and the monitor folders name.
  /// Creates output_dir.
  Reporter(const config::RunConfig& config, const ReporterOptions& options);
  /// With sinks of the caller's own; `history` = what steps before this process came to.
  explicit Reporter(std::vector<std::unique_ptr<Sink>> sinks, History history = {});

  /// Prints the banner. The clock of the summary starts here.
  void begin(const RunFacts& facts);
  void step(const StepRecord& record);
  /// An evaluation at step N comes after step N and before the checkpoint of N is saved, so that a
  /// resume from it keeps both.
  void evaluation(const EvalRecord& record);
  /// To be called before a checkpoint is published: its steps are then sure to be in the log.
  void sync();
  /// Prints the summary and returns it.
  Summary finish();

 private:
  std::vector<std::unique_ptr<Sink>> sinks_;
  History totals_;
  int64_t steps_ = 0, samples_ = 0, input_tokens_ = 0;  // of this process
  double epoch_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::metrics
