// What the training loop talks to: passes every record on to the sinks of rank 0, and sums up.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "metrics/log_window.h"
#include "metrics/record.h"
#include "metrics/trainer_state.h"

namespace trireme::metrics {

struct ReporterOptions {
  int rank = 0;
  LogPace pace = {};
  int64_t eval_steps = 0, save_steps = 0;  // resolved: numbers of steps
  int64_t resumed_step = 0;
  Json saved_state =
      {};  // the trainer_state.json of the checkpoint that the run resumes from, or null
};

/// Makes the logs in `output_dir` (metrics.jsonl, trainer_log.jsonl) those of `run`: what run
/// `before` wrote there is renamed to metrics-of-BEFORE.jsonl and so on, and what `run` wrote
/// earlier gets its name back. Without a name for a run nothing of it is touched. For the only
/// process that writes to output_dir; a kill at any moment may be followed by the same call.
/// Errors: DeviceError.
void hand_over_logs(const std::filesystem::path& output_dir, std::string_view before,
                    std::string_view run);

/// On ranks other than 0 it holds no sinks: every call returns at once and touches nothing.
/// Errors: DeviceError naming the file (a full disk ends the run; it is not quietly unwatched).
class Reporter {
 public:
  /// The console, metrics.jsonl, trainer_log.jsonl and trainer_state.json in output_dir, and what
  /// `report_to` and the monitor folders name. Creates output_dir.
  Reporter(const config::RunConfig& config, const ReporterOptions& options);
  /// With sinks of the caller's own.
  Reporter(std::vector<std::unique_ptr<Sink>> sinks, const LogPace& pace);

  /// A step before a resume: it counts, and is not told to the sinks. Before begin().
  void replay(const StepRecord& record);

  /// Prints the banner. The clock of the summary starts here.
  void begin(const RunFacts& facts);
  void step(const StepRecord& record);
  /// An evaluation at step N comes after step N and before the checkpoint of N is saved, so that a
  /// resume from it keeps both.
  void evaluation(const EvalRecord& record);
  void set_best(const BestModel& best);
  /// trainer_state.json after the last step; "" on ranks other than 0.
  std::string trainer_state() const;
  /// To be called before a checkpoint is published: its steps are then sure to be in the log.
  void sync();
  /// Prints the summary and returns it.
  Summary finish();

 private:
  void add_events(const config::RunConfig& config, const ReporterOptions& options);
  std::optional<LogRecord> count(const StepRecord& record);

  std::vector<std::unique_ptr<Sink>> sinks_;
  TrainerState* trainer_state_ = nullptr;  // one of them
  LogWindow window_;
  int64_t last_step_ = 0;
  double loss_sum_ = 0;  // sum of loss x trained_tokens, skipped steps left out
  int64_t trained_tokens_ = 0;
  int64_t skipped_steps_ = 0;
  int64_t steps_ = 0, samples_ = 0, input_tokens_ = 0;  // of this process
  double epoch_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::metrics
