// What TensorBoard shows: scalars under Hugging Face Trainer's tags, in a new file of a folder.
//
//   a line of the log    train/loss (of all trained tokens since the last), train/grad_norm,
//                        train/learning_rate, train/epoch, perf/tokens_per_second
//   an evaluation        eval/loss, eval/runtime, eval/samples_per_second, eval/steps_per_second,
//                        train/epoch
//   the end              train/train_runtime, train/train_samples_per_second,
//                        train/train_steps_per_second, train/train_loss
//   the begin            the text "args"
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "metrics/appended_file.h"
#include "metrics/event_record.h"
#include "metrics/record.h"

namespace trireme::metrics {

/// One events file, whose writer is this process. Errors: DeviceError.
class EventFile {
 public:
  /// Makes folder and file; the name is TensorBoard's: events.out.tfevents.TIME.HOST.PID.NUMBER,
  /// with the first number that is free.
  explicit EventFile(const std::filesystem::path& folder);

  /// All happen now.
  void restart(int64_t step);
  void scalars(int64_t step, std::span<const Scalar> scalars);
  void text(int64_t step, std::string_view tag, std::string_view text);
  void sync() { file_.sync(); }

 private:
  AppendedFile file_;
};

/// The folder for a run's events: `logging_dir`; else TENSORBOARD_LOGGING_DIR; else
/// OUTPUT/runs/MonDD_HH-MM-SS_HOST, and for a resumed run the latest such folder there is.
std::filesystem::path events_folder(const std::filesystem::path& output_dir,
                                    const std::string& logging_dir, int64_t resumed_step);

struct EventLogOptions {
  std::filesystem::path folder;
  int64_t resumed_step = 0;
  std::string arguments = {};  // the effective configuration, as JSON
};

class EventLog final : public Sink {
 public:
  explicit EventLog(const EventLogOptions& options);
  void begin(const RunFacts&) override {}
  void step(const StepRecord& record) override { last_step_ = record.step; }
  void log(const LogRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override { file_.sync(); }
  void finish(const Summary& summary) override;

 private:
  EventFile file_;
  int64_t last_step_;
};

}  // namespace trireme::metrics
