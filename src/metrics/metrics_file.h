// output_dir/metrics.jsonl: one line a step, whatever logging_steps is, and one an evaluation.
//
//   {"step": 1, "epoch": 0.25, "loss": 6.9, "grad_norm": 1.5, "clip_coef": 0.66,
//    "learning_rate": 5e-05, "trained_tokens": 500, "tokens_per_second": 1000.0,
//    "step_seconds": 0.5, "skipped_steps": 0}                                       (one line)
//   {"step": 4, "epoch": 1.0, "eval_loss": 6.1, "eval_runtime": 0.5,
//    "eval_samples_per_second": 20.0, "eval_steps_per_second": 5.0}                 (one line)
//
// Floats read back exactly; NaN, Infinity and -Infinity are written bare, as Python does.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "metrics/appended_file.h"
#include "metrics/record.h"

namespace trireme::metrics {

/// What the lines kept on a resume add up to, skipped steps left out of the sums.
struct History {
  int64_t last_step = 0;  // of the last step line kept; 0: none
  double loss_sum = 0;    // sum of loss × trained_tokens
  int64_t trained_tokens = 0;
};

/// Removes the lines of steps after `step` and a torn last line: in a new file that takes the old
/// one's place, so that a kill leaves one or the other. No file: nothing to do.
/// Throws DataError `path:line: ...` on a line that is not ours, DeviceError when writing fails.
History cut_back(const std::filesystem::path& path, int64_t step);

/// Errors: DeviceError.
class MetricsFile : public Sink {
 public:
  /// Opens `path` for the steps after `resumed_step`: cut back to it, or, when that is 0, as a new
  /// file; an earlier run's is then kept beside it with ".old" after its name.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step);

  const History& history() const { return history_; }

  void begin(const RunFacts&) override {}
  void step(const StepRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override;
  void finish(const Summary& summary) override;

 private:
  void write_line(std::string_view line);

  History history_;
  AppendedFile file_;
};

}  // namespace trireme::metrics
