#include "metrics/reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "config/print.h"
#include "metrics/console.h"
#include "metrics/deepspeed_monitor.h"
#include "metrics/event_file.h"
#include "metrics/metrics_file.h"
#include "metrics/trainer_log.h"

namespace trireme::metrics {

namespace {
constexpr int kNoTerminal = -1;  // plain lines only
constexpr std::string_view kMetrics = "metrics.jsonl";
constexpr std::string_view kTrainerLog = "trainer_log.jsonl";

/// Whether the locale of the environment is UTF-8; LC_ALL wins over LC_CTYPE over LANG.
bool terminal_speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos ||
           locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

std::filesystem::path log_of_run(const std::filesystem::path& log, std::string_view run) {
  return log.parent_path() /
         fmt::format("{}-of-{}{}", log.stem().string(), run, log.extension().string());
}

}  // namespace

void hand_over_logs(const std::filesystem::path& output_dir, std::string_view before,
                    std::string_view run) {
  std::error_code ignored;
  for (const std::string_view name : {kMetrics, kTrainerLog}) {
    const std::filesystem::path log = output_dir / name;
    if (!before.empty() && before != run && std::filesystem::exists(log, ignored)) {
      rename_path(log, log_of_run(log, before));
    }
    if (run.empty() || std::filesystem::exists(log, ignored)) continue;
    const std::filesystem::path earlier = log_of_run(log, run);
    if (std::filesystem::exists(earlier, ignored)) rename_path(earlier, log);
  }
}

Reporter::Reporter(const config::RunConfig& config, const ReporterOptions& options)
    : window_(options.pace) {
  if (options.rank != 0) return;

  const std::filesystem::path folder = config.output_dir;
  make_folders(folder);
  auto console = std::make_unique<Console>(
      ConsoleOptions{.bar_fd = config.disable_tqdm ? kNoTerminal : STDERR_FILENO,
                     .unicode = terminal_speaks_utf8()});
  auto file = std::make_unique<MetricsFile>(folder / kMetrics, options.resumed_step,
                                            [this](const StepRecord& record) { replay(record); });
  if (last_step_ < options.resumed_step) {
    console->print(
        fmt::format("metrics.jsonl has no lines of steps {} to {}; it goes on after them\n",
                    last_step_ + 1, options.resumed_step));
  }
  const TrainerState::Pace pace = {options.pace.steps, options.eval_steps, options.save_steps};
  auto state = std::make_unique<TrainerState>(folder, pace, options.saved_state);
  trainer_state_ = state.get();
  sinks_.push_back(std::move(file));
  sinks_.push_back(
      std::make_unique<TrainerLog>(folder / kTrainerLog, options.resumed_step, steady_seconds));
  sinks_.push_back(std::move(state));
  add_events(config, options);
  sinks_.push_back(std::move(console));
}

void Reporter::add_events(const config::RunConfig& config, const ReporterOptions& options) {
  if (std::ranges::count(config.report_to, "tensorboard") > 0) {
    sinks_.push_back(std::make_unique<EventLog>(EventLogOptions{
        .folder = events_folder(config.output_dir, config.logging_dir, options.resumed_step),
        .resumed_step = options.resumed_step,
        .arguments = config::to_json(config)}));
  }
  const MonitorFolders monitors{config.monitor_tensorboard_dir, config.monitor_csv_dir};
  if (!monitors.tensorboard.empty() || !monitors.csv.empty()) {
    sinks_.push_back(std::make_unique<DeepspeedMonitor>(monitors));
  }
}

Reporter::Reporter(std::vector<std::unique_ptr<Sink>> sinks, const LogPace& pace)
    : sinks_(std::move(sinks)), window_(pace) {}

std::optional<LogRecord> Reporter::count(const StepRecord& record) {
  last_step_ = record.step;
  epoch_ = record.epoch;
  skipped_steps_ = record.skipped_steps;
  if (!record.skipped) {
    trained_tokens_ += record.trained_tokens;
    loss_sum_ += record.loss * static_cast<double>(record.trained_tokens);
  }
  return window_.add(record);
}

void Reporter::replay(const StepRecord& record) { count(record); }

void Reporter::begin(const RunFacts& facts) {
  started_ = std::chrono::steady_clock::now();
  for (const auto& sink : sinks_) sink->begin(facts);
}

void Reporter::step(const StepRecord& record) {
  ++steps_;
  samples_ += record.samples;
  input_tokens_ += record.input_tokens;
  const std::optional<LogRecord> line = count(record);
  for (const auto& sink : sinks_) {
    if (line) sink->log(*line);
    sink->step(record);
  }
}

void Reporter::set_best(const BestModel& best) {
  if (trainer_state_ != nullptr) trainer_state_->set_best(best);
}

std::string Reporter::trainer_state() const {
  return trainer_state_ == nullptr ? "" : trainer_state_->text();
}

void Reporter::evaluation(const EvalRecord& record) {
  for (const auto& sink : sinks_) sink->evaluation(record);
}

void Reporter::sync() {
  for (const auto& sink : sinks_) sink->sync();
}

Summary Reporter::finish() {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started_;
  const auto a_second = [&](int64_t count) {
    return elapsed.count() > 0 ? static_cast<double>(count) / elapsed.count() : 0;
  };
  const Summary summary = {
      .seconds = elapsed.count(),
      .samples_per_second = a_second(samples_),
      .steps_per_second = a_second(steps_),
      .tokens_per_second = a_second(input_tokens_),
      .loss = trained_tokens_ > 0 ? loss_sum_ / static_cast<double>(trained_tokens_)
                                  : std::numeric_limits<double>::quiet_NaN(),
      .skipped_steps = skipped_steps_,
      .epoch = epoch_,
  };
  for (const auto& sink : sinks_) sink->finish(summary);
  return summary;
}

}  // namespace trireme::metrics
