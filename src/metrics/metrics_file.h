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
#include <functional>

#include "metrics/line_file.h"
#include "metrics/record.h"

namespace trireme::metrics {

/// A step that was logged before a resume; without clip_coef and samples.
using KeptStep = std::function<void(const StepRecord& record)>;

class MetricsFile : public Sink {
 public:
  /// As LineFile opens it.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step, const KeptStep& kept = {});

  void begin(const RunFacts&) override {}
  void step(const StepRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override { file_.sync(); }
  void finish(const Summary& summary) override;

 private:
  LineFile file_;
};

}  // namespace trireme::metrics
