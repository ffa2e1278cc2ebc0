#include "config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/words.h"

namespace trireme::config {
namespace {

constexpr double kExactIntegers = 0x1p53;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::optional<bool> parse_boolean(std::string_view text) {
  static constexpr std::array<std::string_view, 6> kTrue = {"true", "t", "yes", "y", "1", "on"};
  static constexpr std::array<std::string_view, 6> kFalse = {"false", "f", "no", "n", "0", "off"};
  const std::string word = lower_case(text);
  if (std::ranges::find(kTrue, word) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, word) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> whole(double value) {
  if (value != std::floor(value) || std::abs(value) > kExactIntegers) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  const std::optional<double> real = parse_real(text);  // 1e9
  return real ? whole(*real) : std::nullopt;
}

bool is_none(std::string_view text) {
  const std::string word = lower_case(text);
  return word == "none" || word == "null";
}

std::string choice_words(const ValueRule& rule) {
  std::string words;
  for (const Choice& choice : rule.choices) {
    if (!choice.refusal.empty() || !choice.means.empty()) continue;
    words += words.empty() ? "" : ", ";
    words += choice.word;
  }
  return words;
}

std::string kind_words(const ValueRule& rule) {
  switch (rule.kind) {
    case Kind::boolean:
      return "true or false";
    case Kind::integer:
      return "an integer";
    case Kind::real:
      return "a number";
    case Kind::steps:
      return "a whole number of steps, or a share of all steps below 1,";
    case Kind::json:
      return "JSON";
    case Kind::list:
      return "a list of " + choice_words(rule);
    case Kind::choice:
      return "one of " + choice_words(rule);
    case Kind::document:
      return "a file, or the JSON itself";
    case Kind::text:
    case Kind::path:
      break;
  }
  return "a word";
}

std::string expected(const ValueRule& rule) {
  std::string words = "expects " + kind_words(rule);
  const std::string range = range_words(rule.range);
  if (!range.empty()) words += " " + range;
  if (words.ends_with(',')) words.pop_back();
  if (!rule.unset.empty()) words += fmt::format(", or {}", rule.unset);
  return words;
}

void check_range(const ValueRule& rule, double value) {
  const Range& range = rule.range;
  const bool low = range.low_open ? value > range.low : value >= range.low;
  const bool high = range.high_open ? value < range.high : value <= range.high;
  const bool finite = std::isfinite(value);
  const bool steps = rule.kind != Kind::steps || (value >= 0 && (value < 1 || whole(value)));
  if (!low || !high || !finite || !steps) throw BadValue(expected(rule));
}

Json coerce_choice(const ValueRule& rule, std::string_view text) {
  const std::string word = lower_case(text);
  std::vector<std::string_view> known;
  for (const Choice& choice : rule.choices) {
    if (choice.word == word) {
      if (!choice.refusal.empty()) throw BadValue(std::string(choice.refusal));
      return std::string(choice.means.empty() ? choice.word : choice.means);
    }
    known.push_back(choice.word);
  }
  throw BadValue(expected(rule) + did_you_mean(word, known));
}

Json coerce_item(const ValueRule& rule, std::string_view item) {
  return rule.choices.empty() ? Json(item) : coerce_choice(rule, item);
}

Json coerce_list(const ValueRule& rule, std::string_view text) {
  Json items = Json::array();
  while (!text.empty()) {
    const auto end = std::min(text.find_first_of(", "), text.size());
    if (end > 0) items.push_back(coerce_item(rule, text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return items;
}

std::string expand_home(std::string_view path) {
  const char* home = std::getenv("HOME");
  if (home == nullptr || (path != "~" && !path.starts_with("~/"))) return std::string(path);
  return home + std::string(path.substr(1));
}

}  // namespace

Json coerce_text(const ValueRule& rule, std::string_view raw) {
  const std::string_view text = trimmed(raw);
  if (!rule.unset.empty() && (is_none(text) || lower_case(text) == rule.unset)) return nullptr;
  const auto required = [&](const auto& value) -> Json {
    if (!value) throw BadValue(expected(rule));
    return *value;
  };
  Json value;
  switch (rule.kind) {
    case Kind::boolean:
      return required(parse_boolean(text));
    case Kind::integer:
      value = required(parse_integer(text));
      break;
    case Kind::real:
    case Kind::steps:
      value = required(parse_real(text));
      break;
    case Kind::choice:
      return coerce_choice(rule, text);
    case Kind::list:
      return coerce_list(rule, text);
    case Kind::path:
    case Kind::document:
      return expand_home(raw);
    case Kind::text:
      return std::string(raw);
    case Kind::json: {
      if (!text.starts_with('{') && !text.starts_with('[')) return expand_home(raw);
      try {
        return parse_json(text, "the JSON", {.max_bytes = 1 << 20, .max_depth = 32});
      } catch (const DataError& error) {
        throw BadValue(error.what());
      }
    }
  }
  check_range(rule, value.get<double>());
  return value;
}

Json coerce_json(const ValueRule& rule, const Json& value) {
  if (rule.kind == Kind::json && !value.is_string()) return value;
  if (value.is_string()) return coerce_text(rule, value.get_ref<const std::string&>());
  if (value.is_null() && !rule.unset.empty()) return value;
  if (rule.kind == Kind::document && value.is_object()) return dump_json(value);
  if (rule.kind == Kind::text && value.is_primitive() && !value.is_null()) return dump_json(value);
  if (rule.kind == Kind::boolean && value.is_boolean()) return value;
  if (rule.kind == Kind::list && value.is_boolean()) return coerce_text(rule, dump_json(value));
  if (rule.kind == Kind::list && value.is_array()) {
    Json items = Json::array();
    for (const Json& item : value) {
      if (!item.is_string()) throw BadValue(expected(rule));
      items.push_back(coerce_item(rule, item.get_ref<const std::string&>()));
    }
    return items;
  }
  if (value.is_number()) {
    const auto number = value.get<double>();
    const bool exact = value.is_number_integer() && (!value.is_number_unsigned() ||
                                                     std::in_range<int64_t>(value.get<uint64_t>()));
    if (rule.kind == Kind::integer && (exact || whole(number))) {
      check_range(rule, number);
      return exact ? value.get<int64_t>() : *whole(number);
    }
    if (rule.kind == Kind::real || rule.kind == Kind::steps) {
      check_range(rule, number);
      return number;
    }
  }
  throw BadValue(expected(rule));
}

Json given_object(const Json& value) {
  if (value.is_object()) return value;
  if (!value.is_string()) throw BadValue("expects a JSON object, or a file that holds one");
  const auto& path = value.get_ref<const std::string&>();
  if (path.empty()) return Json::object();
  Json object;
  try {
    object = read_json(path, {.max_bytes = 1 << 20, .max_depth = 32});
  } catch (const std::runtime_error& error) {
    throw BadValue(error.what());
  }
  if (!object.is_object()) throw BadValue("the file holds no JSON object");
  return object;
}

Json checked_value(const Option& row, const Json& value) {
  Json checked = coerce_json(row.rule, value);
  const bool refused = row.support == Support::refused && !is_neutral(row.neutral, checked);
  if (refused) throw BadValue(std::string(row.help));
  return checked;
}

std::string shown(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text.empty() ? "\"\"" : printable(text);
  }
  if (value.is_null()) return "none";
  if (value.is_array() && std::ranges::all_of(value, [](const Json& v) { return v.is_string(); })) {
    std::string items;
    for (const Json& item : value) {
      items += (items.empty() ? "" : ",") + item.get_ref<const std::string&>();
    }
    return items.empty() ? "none" : printable(items);
  }
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return printable(dump_json(value));
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

std::string range_words(const Range& range) {
  const bool low = std::isfinite(range.low);
  const bool high = std::isfinite(range.high);
  if (low && high) {
    return fmt::format("in {}{}, {}{}", range.low_open ? '(' : '[', range.low, range.high,
                       range.high_open ? ')' : ']');
  }
  if (low) return fmt::format("{} {}", range.low_open ? "above" : "at least", range.low);
  return "";
}

bool is_neutral(const std::vector<Json>& neutral, const Json& value) {
  return value.is_null() || std::ranges::find(neutral, value) != neutral.end();
}

std::vector<int64_t> parse_block_counts(std::string_view text) {
  std::vector<int64_t> counts;
  if (text.empty() || is_none(text)) return counts;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int64_t> count = parse_integer(trimmed(part));
    if (!count || *count < 0) throw BadValue("expects numbers of blocks, as 4,5,5,4");
    counts.push_back(*count);
  }
  return counts;
}

std::vector<RecomputeSpan> parse_recompute(std::string_view text) {
  std::vector<RecomputeSpan> spans;
  while (true) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view item = trimmed(text.substr(0, comma));
    const auto colon = std::min(item.find(':'), item.size());
    RecomputeSpan span;
    const std::string_view level = item.substr(0, colon);
    const auto words = enum_words(Recompute{});
    const auto found = std::ranges::find(words, level, &EnumWord<Recompute>::word);
    const bool last = comma == text.size();
    if (found != words.end()) {
      span.level = found->value;
      if (colon < item.size()) {
        const std::optional<int64_t> blocks = parse_integer(item.substr(colon + 1));
        span.blocks = blocks.value_or(0);
      }
    }
    if (found == words.end() || span.blocks == 0 || span.blocks < -1 ||
        (colon < item.size() && span.blocks < 1) || (colon == item.size() && !last)) {
      throw BadValue(
          "expects LEVEL for all blocks or LEVEL:n,LEVEL:m from the front, LEVEL one of none, "
          "norms, activation, ffn, qkv, attention, block");
    }
    spans.push_back(span);
    if (last) return spans;
    text.remove_prefix(comma + 1);
  }
}

StepRange parse_step_range(std::string_view text) {
  if (text == "none") return {};
  const auto colon = std::min(text.find(':'), text.size());
  const std::optional<int64_t> first = parse_integer(trimmed(text.substr(0, colon)));
  const std::optional<int64_t> last =
      colon == text.size() ? first : parse_integer(trimmed(text.substr(colon + 1)));
  if (!first || !last || *first < 1 || *last < *first) {
    throw BadValue("expects A:B, the steps from A to B, counted from 1; or none");
  }
  return {*first, *last};
}

std::string step_range_words(const StepRange& range) {
  return range.empty() ? "none" : fmt::format("{}:{}", range.first, range.last);
}

std::string recompute_words(const std::vector<RecomputeSpan>& spans) {
  if (spans.empty()) return "none";
  std::string words;
  for (const RecomputeSpan& span : spans) {
    if (!words.empty()) words += ",";
    words += word_of(span.level);
    if (span.blocks >= 0) words += fmt::format(":{}", span.blocks);
  }
  return words;
}

}  // namespace trireme::config
