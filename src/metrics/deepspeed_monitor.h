// What the sections "tensorboard" and "csv_monitor" of a DeepSpeed file ask for: every step's
// Train/Samples/train_loss and Train/Samples/lr, over the samples seen (step × total batch).
//
//   TENSORBOARD/events.out.tfevents...
//   CSV/Train_Samples_train_loss.csv, CSV/Train_Samples_lr.csv    "step,train_loss", then rows
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "metrics/event_file.h"

namespace trireme::metrics {

struct MonitorFolders {
  std::filesystem::path tensorboard;  // empty: none
  std::filesystem::path csv;
};

class DeepspeedMonitor final : public Sink {
 public:
  explicit DeepspeedMonitor(MonitorFolders folders) : folders_(std::move(folders)) {}

  /// Opens the files: those of a resumed run without what came after its checkpoint.
  void begin(const RunFacts& facts) override;
  void step(const StepRecord& record) override;
  void evaluation(const EvalRecord&) override {}
  void sync() override;
  void finish(const Summary&) override { sync(); }

 private:
  MonitorFolders folders_;
  int64_t samples_a_step_ = 0;
  std::optional<EventFile> events_;
  std::vector<AppendedFile> tables_;  // one a tag
};

}  // namespace trireme::metrics
