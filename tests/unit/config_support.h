// What the tests of src/config share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "config/option.h"
#include "config/parse.h"
#include "config/print.h"

namespace trireme::config {

using Words = std::vector<std::string>;

inline Words with_required(Words words) {
  const Words required = {"--model_name_or_path", "model", "--data_path", "data.jsonl"};
  words.insert(words.begin(), required.begin(), required.end());
  return words;
}

inline ParseResult parse_words(const Words& words) { return parse(with_required(words)); }

/// The message of the ConfigError that parsing throws; "" when it throws none.
inline std::string parse_error(const Words& words) {
  try {
    parse_words(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

inline Json effective(const RunConfig& config) {
  return parse_json(to_json(config), "effective configuration");
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string test_data(const std::string& name) {
  return read_file(std::string(TRIREME_SOURCE_DIR) + "/tests/data/config/" + name);
}

inline void expect_parts(const std::string& text, const Json& parts) {
  for (const Json& part : parts) {
    EXPECT_TRUE(contains(text, part.get<std::string>())) << part << " is not in\n" << text;
  }
}

/// Each part in a line of its own, and no other line.
inline void expect_lines(std::vector<std::string> lines, const Json& parts) {
  for (const Json& part : parts) {
    const auto found = std::ranges::find_if(
        lines, [&](const std::string& line) { return contains(line, part.get<std::string>()); });
    if (found == lines.end()) {
      ADD_FAILURE() << part << " is not among\n" << joined(lines);
    } else {
      lines.erase(found);
    }
  }
  EXPECT_TRUE(lines.empty()) << joined(lines);
}

/// The sentences of a ConfigError.
inline std::vector<std::string> sentences(const std::string& message) {
  std::vector<std::string> lines;
  std::istringstream text(message);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  if (lines.size() > 1) lines.erase(lines.begin());  // how many there are
  return lines;
}

/// The model of the tables of cases.
inline constexpr ModelFacts kFacts = {.hidden_size = 3584, .max_position_embeddings = 32768};

/// Runs "args" on "ranks" ranks, "host_ranks" of them on a host (8 each), with the variables
/// of "environment". Then all of "errors" are the sentences of the error; or all of "expect" is in
/// the effective configuration, all of "table" in that of an imported file, and "notices", where
/// they are given, are the notices.
inline void run_case(const Json& each) {
  SCOPED_TRACE(each.at("name").get<std::string>());
  ParseSettings settings;
  const Json variables = each.value("environment", Json::object());
  settings.environment = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->get<std::string>();
  };
  ParseResult result;
  std::string error;
  try {
    result = parse(each.at("args").get<Words>(), settings);
    resolve(result, kFacts, each.value("ranks", 8), each.value("host_ranks", 8));
  } catch (const ConfigError& thrown) {
    error = thrown.what();
  }
  expect_lines(sentences(error), each.value("errors", Json::array()));
  if (!error.empty()) return;
  const Json settled = effective(result.config);
  const Json expected = each.value("expect", Json::object());
  for (const auto& [name, value] : expected.items()) EXPECT_EQ(settled.at(name), value) << name;
  expect_parts(result.import_table, each.value("table", Json::array()));
  expect_parts(joined(result.notices), each.value("some_notices", Json::array()));
  if (each.contains("notices")) expect_lines(result.notices, each.at("notices"));
}

/// "seed" -> "seqed".
inline std::string misspelt(std::string_view name) {
  std::string word(name);
  word.insert((word.size() + 1) / 2, "q");
  return word;
}

/// A value that `row` accepts and that is not its default.
inline Json good_value(const Option& row) {
  if (row.name == "recompute") return "ffn:2,norms";
  if (row.name == "pipeline_layers") return "4,5,5,4";
  if (row.name == "profile_steps") return "2:5";
  if (row.name == "deepspeed") return R"({"gradient_clipping": 0.5})";
  if (row.name == "fsdp_config") return R"({"state_dict_type": "FULL_STATE_DICT"})";
  if (row.name == "parallelism_config") return R"({"tp_size": 1})";
  if (row.name == "accelerate_config") return R"({"mixed_precision": "no"})";
  if (row.name == "fsdp") return "auto_wrap";
  if (row.name == "lr_scheduler_kwargs") return Json{{"num_cycles", 2.0}};
  if (row.name == "warmup_ratio") return 0.25;
  if (row.name == "use_cpu" || row.name == "full_determinism") return true;
  if (row.name == "torch_dtype") return "bfloat16";
  if (row.name == "save_strategy") return "best";
  switch (row.rule.kind) {
    case Kind::boolean:
      return row.get(RunConfig{}) != true;
    case Kind::integer: {
      const Json now = row.get(RunConfig{});
      return now.is_null() || now.get<int64_t>() < 0 ? Json(7) : Json(now.get<int64_t>() + 1);
    }
    case Kind::real:
      return row.get(RunConfig{}).get<double>() / 2 + 0.125;
    case Kind::steps:
      return 7;
    case Kind::list:
      return "jsonl";
    case Kind::choice:
      for (const Choice& choice : row.rule.choices) {
        const bool plain = choice.means.empty() && choice.refusal.empty();
        if (plain && row.get(RunConfig{}) != choice.word) return std::string(choice.word);
      }
      break;
    case Kind::text:
    case Kind::path:
    case Kind::json:
    case Kind::document:
      break;
  }
  return "some_word";
}

/// A value that no setting of this kind takes; "" where every word is one.
inline std::string bad_value(const Option& row) {
  if (row.name == "recompute") return "blocks";
  if (row.name == "pipeline_layers") return "4,,5";
  if (row.name == "profile_steps") return "5:2";
  switch (row.rule.kind) {
    case Kind::boolean:
      return "maybe";
    case Kind::integer:
      return "1.5";
    case Kind::real:
      return "fast";
    case Kind::steps:
      return "2.5";
    case Kind::list:
    case Kind::choice:
      return "nonsense";
    case Kind::json:
      return "{broken";
    case Kind::text:
    case Kind::path:
    case Kind::document:
      break;
  }
  return "";
}

inline std::string as_word(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

}  // namespace trireme::config
