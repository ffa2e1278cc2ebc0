// output_dir/trainer_log.jsonl: a line for each of the log, in LLaMA-Factory's keys.
//
//   {"current_steps": 10, "total_steps": 100, "loss": 1.5, "lr": 5e-05, "epoch": 0.1,
//    "percentage": 10.0, "elapsed_time": "0:00:10", "remaining_time": "0:01:30",
//    "throughput": 1000.0, "total_tokens": 10240}                                   (one line)
//   {"current_steps": 10, "total_steps": 100, "eval_loss": 1.4, "epoch": 0.1, ...}  (to the times)
//
// Times are of this process; `throughput` is tokens a second since the line before.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "metrics/line_file.h"
#include "metrics/record.h"

namespace trireme::metrics {

class TrainerLog final : public Sink {
 public:
  /// As LineFile opens it. `clock`: seconds on any steadily growing clock.
  TrainerLog(const std::filesystem::path& path, int64_t resumed_step,
             std::function<double()> clock);

  void begin(const RunFacts& facts) override;
  void step(const StepRecord&) override {}
  void log(const LogRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override { file_.sync(); }
  void finish(const Summary&) override { sync(); }

 private:
  /// `what` comes after total_steps, `more` last.
  void write(int64_t step, double epoch, const std::string& what, const std::string& more);

  LineFile file_;
  std::function<double()> clock_;
  RunFacts facts_;
  double started_ = 0;
};

}  // namespace trireme::metrics
