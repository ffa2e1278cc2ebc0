#include "metrics/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string_view>

#include "base/text.h"

namespace trireme::metrics {

namespace {

/// Python's repr of a finite double; fmt's shortest form differs only in whole numbers.
std::string repr(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string python_number(double value, std::string_view nan, std::string_view infinity) {
  if (std::isnan(value)) return std::string(nan);
  if (std::isinf(value)) return (value < 0 ? "-" : "") + std::string(infinity);
  return repr(value);
}

}  // namespace

std::string json_number(double value) { return python_number(value, "NaN", "Infinity"); }

std::string rounded(double value, int decimals) {
  if (std::isfinite(value)) value = std::stod(fmt::format("{:.{}f}", value, decimals));
  return python_number(value, "nan", "inf");
}

std::string significant(double value, int digits) {
  if (std::isfinite(value)) value = std::stod(fmt::format("{:.{}g}", value, digits));
  return python_number(value, "nan", "inf");
}

std::string thousands(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const auto first = static_cast<int64_t>(digits.front() == '-');
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string short_count(double value) {
  constexpr std::array<std::string_view, 4> kUnits = {"", "k", "M", "G"};
  size_t unit = 0;
  // 999.5 would print as "1000".
  while (value >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  if (unit == 0) return fmt::format("{:.0f}", value);
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string training_banner(const RunFacts& facts) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto line = [&](std::string_view name, std::string_view value) {
    fmt::format_to(out, "  {} = {}\n", name, value);
  };
  fmt::format_to(out, "***** Running training *****\n");
  line("Num examples", thousands(facts.num_examples));
  line("Num Epochs", thousands(facts.num_train_epochs));
  line("Instantaneous batch size per device", thousands(facts.per_device_batch_size));
  line("Total train batch size (w. parallel, distributed & accumulation)",
       thousands(facts.total_batch_size));
  line("Gradient Accumulation steps", fmt::to_string(facts.gradient_accumulation_steps));
  line("Total optimization steps", thousands(facts.total_steps));
  line("Number of trainable parameters", thousands(facts.num_trainable_parameters));
  for (const auto& [name, value] : facts.more) line(name, value);
  if (facts.resumed_step == 0) return text;
  fmt::format_to(out, "  Continuing training from checkpoint, will skip to saved global_step\n");
  if (facts.steps_per_epoch > 0) {
    fmt::format_to(out, "  Continuing training from epoch {}\n",
                   facts.resumed_step / facts.steps_per_epoch);
  }
  fmt::format_to(out, "  Continuing training from global step {}\n", facts.resumed_step);
  return text;
}

std::string evaluation_banner(int64_t num_examples, int64_t batch_size) {
  return fmt::format("***** Running Evaluation *****\n  Num examples = {}\n  Batch size = {}\n",
                     num_examples, batch_size);
}

std::string memory_table(const std::string& title, std::span<const MemoryRow> rows) {
  std::map<std::string, int64_t> totals;
  for (const MemoryRow& row : rows) totals[row.space] += row.bytes;

  size_t owner_width = 5, space_width = 5, bytes_width = 5;  // of the headings
  for (const MemoryRow& row : rows) {
    owner_width = std::max(owner_width, row.owner.size());
    space_width = std::max(space_width, row.space.size());
    bytes_width = std::max(bytes_width, thousands(totals[row.space]).size());
  }

  std::string text = title + "\n";
  auto out = std::back_inserter(text);
  const auto line = [&](std::string_view owner, std::string_view space, std::string_view bytes,
                        std::string_view human) {
    fmt::format_to(out, "  {:<{}}  {:<{}}  {:>{}}  {:>10}\n", owner, owner_width, space,
                   space_width, bytes, bytes_width, human);
  };
  line("owner", "space", "bytes", "size");
  for (const MemoryRow& row : rows) {
    line(row.owner, row.space, thousands(row.bytes), human_bytes(row.bytes));
  }
  for (const auto& [space, bytes] : totals) {
    line("total", space, thousands(bytes), human_bytes(bytes));
  }
  return text;
}

}  // namespace trireme::metrics
