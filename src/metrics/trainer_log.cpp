#include "metrics/trainer_log.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "metrics/text.h"

namespace trireme::metrics {

namespace {

/// As Python prints a timedelta: "0:00:10", "1 day, 2:03:04".
std::string timedelta(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t days = whole / 86400;
  const std::string time =
      fmt::format("{}:{:02}:{:02}", whole / 3600 % 24, whole / 60 % 60, whole % 60);
  if (days == 0) return time;
  return fmt::format("{} {}, {}", days, days == 1 ? "day" : "days", time);
}

}  // namespace

TrainerLog::TrainerLog(const std::filesystem::path& path, int64_t resumed_step,
                       std::function<double()> clock)
    : file_(path, "current_steps", resumed_step), clock_(std::move(clock)) {}

void TrainerLog::begin(const RunFacts& facts) {
  facts_ = facts;
  started_ = clock_();
}

void TrainerLog::write(int64_t step, double epoch, const std::string& what,
                       const std::string& more) {
  const double elapsed = clock_() - started_;
  const int64_t done = step - facts_.resumed_step;
  const double left = done > 0 ? elapsed / static_cast<double>(done) *
                                     static_cast<double>(facts_.total_steps - step)
                               : 0;
  const double share = facts_.total_steps > 0 ? 100.0 * static_cast<double>(step) /
                                                    static_cast<double>(facts_.total_steps)
                                              : 100;
  file_.write(fmt::format(
      "{{\"current_steps\": {}, \"total_steps\": {}, {}, \"epoch\": {}, \"percentage\": {}, "
      "\"elapsed_time\": \"{}\", \"remaining_time\": \"{}\"{}}}\n",
      step, facts_.total_steps, what, json_number(epoch), rounded(share, 2), timedelta(elapsed),
      timedelta(left), more));
}

void TrainerLog::log(const LogRecord& record) {
  write(record.step, record.epoch,
        fmt::format("\"loss\": {}, \"lr\": {}", json_number(record.loss),
                    json_number(record.learning_rate)),
        fmt::format(", \"throughput\": {}, \"total_tokens\": {}",
                    rounded(record.tokens_per_second, 2), record.input_tokens));
}

void TrainerLog::evaluation(const EvalRecord& record) {
  write(record.step, record.epoch, fmt::format("\"eval_loss\": {}", json_number(record.loss)), "");
}

}  // namespace trireme::metrics
