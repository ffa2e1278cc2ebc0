// trainer_state.json as Hugging Face's Trainer writes it, in every checkpoint and, at the end, in
// output_dir with train_results.json, eval_results.json and all_results.json. Keys are sorted, NaN
// and Infinity are written bare, as Python does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"
#include "config/run_config.h"
#include "metrics/record.h"

namespace trireme::metrics {

/// The evaluation with the lowest loss.
struct BestModel {
  int64_t step = 0;
  double metric = 0;
  std::string checkpoint;  // its folder; empty: it was not saved
};

class TrainerState final : public Sink {
 public:
  struct Pace {  // resolved: numbers of steps
    int64_t logging_steps = 500;
    int64_t eval_steps = 500;
    int64_t save_steps = 500;
  };
  /// Writes into `folder`. `saved`: the trainer_state.json of the checkpoint that a run resumes
  /// from, whose log goes on; null for none.
  TrainerState(const std::filesystem::path& folder, const Pace& pace, const Json& saved);

  void begin(const RunFacts& facts) override;
  void step(const StepRecord& record) override;
  void log(const LogRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override {}
  /// Appends the summary to the log and writes all four files.
  void finish(const Summary& summary) override;

  void set_best(const BestModel& best) { best_ = best; }
  /// trainer_state.json after the last step told of.
  std::string text() const;

 private:
  std::filesystem::path folder_;
  Pace pace_;
  Json log_history_ = Json::array();
  std::optional<BestModel> best_;
  RunFacts facts_;
  Json evaluated_;  // results of the last evaluation; null: none yet
  int64_t step_ = 0;
  double epoch_ = 0;
  int64_t input_tokens_ = 0;
};

}  // namespace trireme::metrics
