#include "config/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "config/value.h"

namespace trireme::config {
namespace {

bool is_setting(const Option& row) {
  return row.support == Support::honoured && row.maps_to.empty();
}

Json effective(const Option& row, const RunConfig& config) {
  Json value = row.get(config);
  if (value.is_null() && row.rule.unset == "auto") return "auto";
  if (row.rule.kind == Kind::steps && value >= 1) return static_cast<int64_t>(value.get<double>());
  return value;
}

std::string value_words(const Option& row, const RunConfig& config) {
  const Json value = effective(row, config);
  return value == "" ? "none" : shown(value);
}

/// Calls `each(row)` for the rows of the group.
template <typename Each>
void for_group(const std::vector<Option>& rows, OptionGroup group, Each each) {
  for (const Option& row : rows) {
    if (row.group == group) each(row);
  }
}

std::string placeholder(const ValueRule& rule) {
  switch (rule.kind) {
    case Kind::boolean:
      return "BOOL";
    case Kind::integer:
      return "INT";
    case Kind::real:
      return "NUMBER";
    case Kind::steps:
      return "STEPS";
    case Kind::text:
      return "WORD";
    case Kind::path:
      return "PATH";
    case Kind::list:
      return "WORDS";
    case Kind::json:
    case Kind::document:
      return "JSON";
    case Kind::choice:
      break;
  }
  std::string words;
  for (const Choice& choice : rule.choices) {
    if (!choice.refusal.empty() || !choice.means.empty()) continue;
    words += (words.empty() ? "" : "|") + std::string(choice.word);
  }
  return words;
}

/// `words` broken at spaces to 100 columns, each line after the first starting with `indent`.
std::string wrapped(const std::string& words, size_t first_column, size_t indent) {
  constexpr size_t kColumns = 100;
  std::string result;
  size_t column = first_column;
  size_t start = 0;
  while (start < words.size()) {
    const size_t end = std::min(words.find(' ', start), words.size());
    const size_t length = end - start;
    if (column + length + 1 > kColumns && column > indent) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (start > 0) {
      result += ' ';
      ++column;
    }
    result.append(words, start, length);
    column += length;
    start = end + 1;
  }
  return result;
}

std::string help_line(const Option& row) {
  constexpr size_t kIndent = 34;
  constexpr size_t kLongestPlaceholder = 60;
  std::string words(row.help);
  std::string value = placeholder(row.rule);
  if (value.size() > kLongestPlaceholder) {
    std::ranges::replace(value, '|', ' ');
    words += ": " + std::exchange(value, "WORD");
  }
  std::string line = fmt::format("  --{} {}", row.name, value);
  if (line.size() + 2 > kIndent) line += "\n";
  const size_t used = line.ends_with('\n') ? 0 : line.size();
  line += std::string(kIndent - used, ' ');
  const std::string standard = row.maps_to.empty() ? value_words(row, RunConfig{}) : "none";
  if (standard != "none" && standard != "{}" && standard != "false")
    words += fmt::format(" [{}]", standard);
  return line + wrapped(words, kIndent, kIndent) + "\n";
}

}  // namespace

std::vector<std::pair<OptionGroup, std::string_view>> option_groups() {
  return {
      {OptionGroup::command, "This command"},
      {OptionGroup::model, "Model"},
      {OptionGroup::data, "Data"},
      {OptionGroup::steps, "Steps and batches"},
      {OptionGroup::optimizer, "Optimizer and schedule"},
      {OptionGroup::numbers, "Numbers"},
      {OptionGroup::layout, "Layout and memory"},
      {OptionGroup::output, "Saving, logging, evaluation"},
      {OptionGroup::proof, "Proof and debugging"},
  };
}

std::string to_json(const RunConfig& config) {
  Json root = Json::object();
  for (const Option& row : train_options()) {
    if (is_setting(row)) root[std::string(row.name)] = effective(row, config);
  }
  return dump_json(root, 2);
}

std::string describe(const RunConfig& config) {
  const std::vector<Option> rows = train_options();
  std::string text;
  for (const auto& [group, title] : option_groups()) {
    std::string lines;
    for_group(rows, group, [&](const Option& row) {
      if (!is_setting(row)) return;
      fmt::format_to(std::back_inserter(lines), "  {:<36}{}\n", row.name, value_words(row, config));
    });
    if (!lines.empty()) text += fmt::format("{}\n{}", title, lines);
  }
  return text;
}

std::string help_text(std::string_view verb, const std::vector<Option>& extra) {
  std::vector<Option> rows = train_options();
  rows.insert(rows.end(), extra.begin(), extra.end());
  std::string text = fmt::format(
      "usage: trireme {} [run.yaml [name=value ...]] [--name value | --name=value ...]\n\n"
      "'-' equals '_'; a BOOL may stand alone, and --no_NAME turns one off that is on by default.\n"
      "[ ] is the default; booleans without one are off. STEPS below 1 are a share of all steps.\n",
      verb);
  for (const auto& [group, title] : option_groups()) {
    std::string lines;
    for_group(rows, group, [&](const Option& row) {
      if (row.support == Support::honoured) lines += help_line(row);
    });
    if (!lines.empty()) text += fmt::format("\n{}:\n{}", title, lines);
  }
  text +=
      "\nOther names of Hugging Face, TRL, LLaMA-Factory, axolotl and DeepSpeed are known too:\n"
      "docs/configuration.md says what each does here.\n";
  return text;
}

}  // namespace trireme::config
