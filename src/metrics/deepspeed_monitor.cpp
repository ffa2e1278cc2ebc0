#include "metrics/deepspeed_monitor.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "base/file.h"
#include "metrics/text.h"

namespace trireme::metrics {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 2> kNames = {"train_loss", "lr"};
constexpr std::array<std::string_view, 2> kTags = {"Train/Samples/train_loss", "Train/Samples/lr"};

/// The rows of an earlier run up to `samples`, after the title.
std::string kept_rows(const fs::path& path, std::string_view name, int64_t samples) {
  std::string kept = fmt::format("step,{}\n", name);
  if (samples == 0 || !fs::exists(path)) return kept;
  std::istringstream rows(read_text_file(path, std::numeric_limits<int64_t>::max()));
  std::string row;
  std::getline(rows, row);
  // A row without an end was torn by a kill.
  while (std::getline(rows, row) && !rows.eof()) {
    if (std::strtoll(row.c_str(), nullptr, 10) <= samples) kept += row + "\n";
  }
  return kept;
}

}  // namespace

void DeepspeedMonitor::begin(const RunFacts& facts) {
  samples_a_step_ = facts.total_batch_size;
  const int64_t samples = facts.resumed_step * samples_a_step_;
  if (!folders_.tensorboard.empty()) {
    events_.emplace(folders_.tensorboard);
    if (samples > 0) events_->restart(samples + 1);
  }
  if (folders_.csv.empty()) return;
  make_folders(folders_.csv);
  for (const std::string_view name : kNames) {
    const fs::path path = folders_.csv / fmt::format("Train_Samples_{}.csv", name);
    replace_file(path, kept_rows(path, name, samples));
    tables_.emplace_back(path);
  }
}

void DeepspeedMonitor::step(const StepRecord& record) {
  const int64_t samples = record.step * samples_a_step_;
  const std::array<double, 2> values = {record.loss, record.learning_rate};
  if (events_) {
    events_->scalars(samples,
                     std::array<Scalar, 2>{{{kTags[0], values[0]}, {kTags[1], values[1]}}});
  }
  for (size_t i = 0; i < tables_.size(); ++i) {
    tables_[i].append(fmt::format("{},{}\n", samples, json_number(values[i])));
  }
}

void DeepspeedMonitor::sync() {
  if (events_) events_->sync();
  for (AppendedFile& table : tables_) table.sync();
}

}  // namespace trireme::metrics
