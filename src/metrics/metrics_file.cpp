#include "metrics/metrics_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "metrics/text.h"

namespace trireme::metrics {

namespace {

namespace fs = std::filesystem;

/// The text after `"key": ` in one of our lines; empty when the key is absent.
std::string_view value_of(std::string_view line, std::string_view key) {
  const std::string quoted = fmt::format("\"{}\": ", key);
  const size_t at = line.find(quoted);
  return at == std::string_view::npos ? std::string_view() : line.substr(at + quoted.size());
}

std::optional<int64_t> integer_of(std::string_view line, std::string_view key) {
  const std::string_view text = value_of(line, key);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end == text.data() + text.size()) return std::nullopt;
  if (*end != ',' && *end != '}') return std::nullopt;
  return value;
}

}  // namespace

History cut_back(const fs::path& path, int64_t step) {
  History history;
  if (!fs::exists(path)) return history;
  const std::string text = read_text_file(path, std::numeric_limits<int64_t>::max());
  std::string kept;
  kept.reserve(text.size());
  int64_t line_number = 0, skipped_before = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++line_number;
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // torn by a kill or a full disk
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    const auto line_step = integer_of(line, "step");
    if (!line_step || line.back() != '}') {
      throw DataError(fmt::format("{}:{}: not a line of metrics", path.string(), line_number));
    }
    if (*line_step > step) continue;
    kept.append(line).push_back('\n');
    const auto trained_tokens = integer_of(line, "trained_tokens");
    const auto skipped_steps = integer_of(line, "skipped_steps");
    if (!trained_tokens || !skipped_steps) continue;  // an evaluation
    history.last_step = *line_step;
    if (std::exchange(skipped_before, *skipped_steps) != *skipped_steps) continue;
    history.trained_tokens += *trained_tokens;
    history.loss_sum += std::strtod(std::string(value_of(line, "loss")).c_str(), nullptr) *
                        static_cast<double>(*trained_tokens);
  }
  if (kept.size() != text.size()) replace_file(path, kept);
  return history;
}

MetricsFile::MetricsFile(const fs::path& path, int64_t resumed_step) {
  if (resumed_step > 0) {
    history_ = cut_back(path, resumed_step);
  } else if (fs::exists(path)) {
    rename_path(path, path.string() + ".old");
  }
  file_ = AppendedFile(path);
}

void MetricsFile::step(const StepRecord& record) {
  write_line(fmt::format(
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
  write_line(
      fmt::format("{{\"step\": {}, \"epoch\": {}, \"eval_loss\": {}, \"eval_runtime\": {}, "
                  "\"eval_samples_per_second\": {}, \"eval_steps_per_second\": {}}}\n",
                  record.step, json_number(record.epoch), json_number(record.loss),
                  json_number(record.seconds), rate(record.samples), rate(record.batches)));
}

void MetricsFile::sync() { file_.sync(); }

void MetricsFile::finish(const Summary&) { sync(); }

void MetricsFile::write_line(std::string_view line) { file_.append(line); }

}  // namespace trireme::metrics
