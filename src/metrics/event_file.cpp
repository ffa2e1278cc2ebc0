#include "metrics/event_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/error.h"
#include "base/file.h"

namespace trireme::metrics {
namespace {

namespace fs = std::filesystem;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) throw_errno("gethostname", "events file");
  return name.data();
}

double a_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

/// The folder in `runs` that was written to last; empty without one.
fs::path latest_run(const fs::path& runs) {
  fs::path latest;
  for (const std::string& name : list_folder(runs)) {
    const fs::path run = runs / name;
    if (!fs::is_directory(run)) continue;
    if (latest.empty() || fs::last_write_time(latest) < fs::last_write_time(run)) latest = run;
  }
  return latest;
}

}  // namespace

EventFile::EventFile(const fs::path& folder) {
  make_folders(folder);
  const std::string stem = fmt::format("events.out.tfevents.{}.{}.{}",
                                       static_cast<int64_t>(wall_seconds()), host_name(), getpid());
  int number = 0;
  while (fs::exists(folder / fmt::format("{}.{}", stem, number))) ++number;
  file_ =
      AppendedFile(folder / fmt::format("{}.{}", stem, number), AppendedFile::Existing::refused);
  file_.append(event_record(version_event(wall_seconds())));
}

void EventFile::restart(int64_t step) {
  file_.append(event_record(restart_event({wall_seconds(), step})));
}

void EventFile::scalars(int64_t step, std::span<const Scalar> scalars) {
  file_.append(event_record(scalars_event({wall_seconds(), step}, scalars)));
}

void EventFile::text(int64_t step, std::string_view tag, std::string_view text) {
  file_.append(event_record(text_event({wall_seconds(), step}, tag, text)));
}

fs::path events_folder(const fs::path& output_dir, const std::string& logging_dir,
                       int64_t resumed_step) {
  if (!logging_dir.empty()) return logging_dir;
  const char* given = std::getenv("TENSORBOARD_LOGGING_DIR");
  if (given != nullptr && *given != '\0') return given;
  const fs::path runs = output_dir / "runs";
  const fs::path latest = resumed_step > 0 ? latest_run(runs) : fs::path();
  if (!latest.empty()) return latest;
  return runs / fmt::format("{:%b%d_%H-%M-%S}_{}", fmt::localtime(std::time(nullptr)), host_name());
}

EventLog::EventLog(const EventLogOptions& options)
    : file_(options.folder), last_step_(options.resumed_step) {
  // What a killed run wrote after the checkpoint comes again.
  if (options.resumed_step > 0) file_.restart(options.resumed_step + 1);
  file_.text(options.resumed_step, "args/text_summary", options.arguments);
}

void EventLog::log(const LogRecord& record) {
  file_.scalars(record.step, std::array<Scalar, 5>{{
                                 {"train/loss", record.loss},
                                 {"train/grad_norm", record.grad_norm},
                                 {"train/learning_rate", record.learning_rate},
                                 {"train/epoch", record.epoch},
                                 {"perf/tokens_per_second", record.tokens_per_second},
                             }});
}

void EventLog::evaluation(const EvalRecord& record) {
  file_.scalars(record.step,
                std::array<Scalar, 5>{{
                    {"eval/loss", record.loss},
                    {"eval/runtime", record.seconds},
                    {"eval/samples_per_second", a_second(record.samples, record.seconds)},
                    {"eval/steps_per_second", a_second(record.batches, record.seconds)},
                    {"train/epoch", record.epoch},
                }});
}

void EventLog::finish(const Summary& summary) {
  file_.scalars(last_step_, std::array<Scalar, 4>{{
                                {"train/train_runtime", summary.seconds},
                                {"train/train_samples_per_second", summary.samples_per_second},
                                {"train/train_steps_per_second", summary.steps_per_second},
                                {"train/train_loss", summary.loss},
                            }});
  file_.sync();
}

}  // namespace trireme::metrics
