#include "metrics/metrics_file.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "metrics/text.h"

namespace trireme::metrics {

namespace {

constexpr std::string_view kStep = "step";

/// Hands the steps among the lines of a resumed run to `visit`.
KeptLine only_steps(const KeptStep& visit) {
  return [&visit, skipped_before = int64_t{0}](std::string_view line, int64_t step) mutable {
    const auto trained_tokens = integer_of(line, "trained_tokens");
    const auto skipped_steps = integer_of(line, "skipped_steps");
    if (!visit || !trained_tokens || !skipped_steps) return;  // an evaluation
    StepRecord record;
    record.step = step;
    record.epoch = real_of(line, "epoch");
    record.loss = real_of(line, "loss");
    record.grad_norm = real_of(line, "grad_norm");
    record.learning_rate = real_of(line, "learning_rate");
    record.trained_tokens = *trained_tokens;
    record.step_seconds = real_of(line, "step_seconds");
    record.input_tokens = std::llround(real_of(line, "tokens_per_second") * record.step_seconds);
    record.skipped_steps = *skipped_steps;
    record.skipped = std::exchange(skipped_before, *skipped_steps) != *skipped_steps;
    record.ends_epoch = record.epoch == std::floor(record.epoch);
    visit(record);
  };
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_step,
                         const KeptStep& kept)
    : file_(path, kStep, resumed_step, only_steps(kept)) {}

void MetricsFile::step(const StepRecord& record) {
  file_.write(fmt::format(
      "{{\"step\": {}, \"epoch\": {}, \"loss\": {}, \"grad_norm\": {}, \"clip_coef\": {}, "
      "\"learning_rate\": {}, \"trained_tokens\": {}, \"tokens_per_second\": {}, "
      "\"step_seconds\": {}, \"skipped_steps\": {}}}\n",
      record.step, json_number(record.epoch), json_number(record.loss),
      json_number(record.grad_norm), json_number(record.clip_coef),
      json_number(record.learning_rate), record.trained_tokens,
      json_number(record.tokens_per_second()), json_number(record.step_seconds),
      record.skipped_steps));
}

void MetricsFile::evaluation(const EvalRecord& record) {
  const auto rate = [&](int64_t count) {
    return json_number(record.seconds > 0 ? static_cast<double>(count) / record.seconds : 0);
  };
  file_.write(
      fmt::format("{{\"step\": {}, \"epoch\": {}, \"eval_loss\": {}, \"eval_runtime\": {}, "
                  "\"eval_samples_per_second\": {}, \"eval_steps_per_second\": {}}}\n",
                  record.step, json_number(record.epoch), json_number(record.loss),
                  json_number(record.seconds), rate(record.samples), rate(record.batches)));
}

void MetricsFile::finish(const Summary&) { sync(); }

}  // namespace trireme::metrics
