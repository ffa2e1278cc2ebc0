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

namespace trireme::metrics {

namespace {
constexpr int kNoTerminal = -1;  // plain lines only

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

}  // namespace

Reporter::Reporter(const config::RunConfig& config, const ReporterOptions& options) {
  if (options.rank != 0) return;

  const std::filesystem::path folder = config.output_dir;
  make_folders(folder);
  auto console = std::make_unique<Console>(
      ConsoleOptions{.bar_fd = config.disable_tqdm ? kNoTerminal : STDERR_FILENO,
                     .logging_steps = options.logging_steps,
                     .unicode = terminal_speaks_utf8()});
  auto file = std::make_unique<MetricsFile>(folder / "metrics.jsonl", options.resumed_step);
  totals_ = file->history();
  if (totals_.last_step < options.resumed_step) {
    console->print(
        fmt::format("metrics.jsonl has no lines of steps {} to {}; it goes on after them\n",
                    totals_.last_step + 1, options.resumed_step));
  }
  sinks_.push_back(std::move(file));
  if (std::ranges::count(config.report_to, "tensorboard") > 0) {
    sinks_.push_back(std::make_unique<EventLog>(
        EventLogOptions{.folder = events_folder(folder, config.logging_dir, options.resumed_step),
                        .logging_steps = options.logging_steps,
                        .resumed_step = options.resumed_step,
                        .arguments = config::to_json(config)}));
  }
  const MonitorFolders monitors{config.monitor_tensorboard_dir, config.monitor_csv_dir};
  if (!monitors.tensorboard.empty() || !monitors.csv.empty()) {
    sinks_.push_back(std::make_unique<DeepspeedMonitor>(monitors));
  }
  sinks_.push_back(std::move(console));
}

Reporter::Reporter(std::vector<std::unique_ptr<Sink>> sinks, History history)
    : sinks_(std::move(sinks)), totals_(history) {}

void Reporter::begin(const RunFacts& facts) {
  started_ = std::chrono::steady_clock::now();
  for (const auto& sink : sinks_) sink->begin(facts);
}

void Reporter::step(const StepRecord& record) {
  ++steps_;
  samples_ += record.samples;
  input_tokens_ += record.input_tokens;
  totals_.last_step = record.step;
  if (!record.skipped) {
    totals_.trained_tokens += record.trained_tokens;
    totals_.loss_sum += record.loss * static_cast<double>(record.trained_tokens);
  }
  epoch_ = record.epoch;
  for (const auto& sink : sinks_) sink->step(record);
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
      .loss = totals_.trained_tokens > 0
                  ? totals_.loss_sum / static_cast<double>(totals_.trained_tokens)
                  : std::numeric_limits<double>::quiet_NaN(),
      .epoch = epoch_,
  };
  for (const auto& sink : sinks_) sink->finish(summary);
  return summary;
}

}  // namespace trireme::metrics
