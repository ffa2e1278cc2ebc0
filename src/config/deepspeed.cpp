#include "config/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/value.h"

namespace trireme::config {
namespace {

bool is_auto(const Json& value) { return value == "auto"; }

class SchemaReader {
 public:
  SchemaReader(const OptionTable& table, std::string source) : table_(table) {
    reading_.source = std::move(source);
    for (DeepspeedKey& key : deepspeed_keys()) {
      const std::string_view path = key.path;
      check(keys_.emplace(path, std::move(key)).second, "the schema holds {} twice", path);
    }
    for (const auto& [spelling, path] : deepspeed_aliases()) aliases_.emplace(spelling, path);
  }

  DeepspeedReading read(const Json& root) {
    if (root.is_object()) {
      read_section(root, "");
      report_ignored();
    } else {
      problem("{}: expects a JSON object", reading_.source);
    }
    return std::move(reading_);
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    reading_.problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void bad_value(const std::string& path, const Json& value, std::string_view remedy) {
    problem("{} = {} in {}: {}", path, shown(value), reading_.source, remedy);
  }

  bool is_section(const std::string& path) const {
    const auto next = keys_.lower_bound(path + ".");
    return next != keys_.end() && next->first.starts_with(path + ".");
  }

  void read_section(const Json& section, const std::string& prefix) {
    for (const auto& [name, value] : section.items()) {
      std::string path = prefix.empty() ? name : prefix + "." + name;
      if (const auto alias = aliases_.find(path); alias != aliases_.end()) path = alias->second;
      if (const auto key = keys_.find(path); key != keys_.end()) {
        read_key(key->second, path, value);
      } else if (!is_section(path)) {
        problem("unknown key {} in {}{}", printable(path), reading_.source,
                suggestion(prefix, name));
      } else if (value.is_object()) {
        if (accepts_type(path, value)) read_section(value, path);
      } else if (!value.is_null()) {
        bad_value(path, value, "expects an object");
      }
    }
  }

  /// The nearest name beside it, else the only place where a key of that very name belongs.
  std::string suggestion(const std::string& prefix, const std::string& name) const {
    const std::string start = prefix.empty() ? "" : prefix + ".";
    std::vector<std::string_view> beside;
    std::vector<std::string_view> elsewhere;
    for (const auto& [path, key] : keys_) {
      if (path.starts_with(start)) {
        const std::string_view rest = path.substr(start.size());
        beside.push_back(rest.substr(0, std::min(rest.find('.'), rest.size())));
      }
      if (path.substr(path.rfind('.') + 1) == name) elsewhere.push_back(path);
    }
    const std::string words = did_you_mean(name, beside);
    if (words.empty() && elsewhere.size() == 1) {
      return fmt::format(" (did you mean '{}'?)", elsewhere.front());
    }
    return words;
  }

  void read_key(const DeepspeedKey& key, const std::string& path, const Json& value) {
    try {
      if (key.support == Support::honoured) {
        if (key.option.empty()) {
          if (!is_auto(value)) read_in_code(path, value);
        } else {
          honour(key, path, value);
        }
        return;
      }
      const ValueRule rule{.kind = key.kind, .unset = "none"};
      if (is_auto(value)) return;
      const Json checked = coerce_json(rule, value);
      if (key.support == Support::meaningless) {
        ignored_[key.why].push_back(path);
      } else if (!is_neutral(key.neutral, checked)) {
        throw BadValue(std::string(key.why));
      }
    } catch (const BadValue& bad) {
      bad_value(path, value, bad.what());
    }
  }

  /// "auto" leaves the flag's value; where the option itself knows "auto", it is that.
  void honour(const DeepspeedKey& key, const std::string& path, const Json& value) {
    const ValueRule& rule = table_.at(key.option).rule;
    if (is_auto(value) && rule.unset != "auto") return;
    reading_.values.push_back({std::string(key.option), coerce_json(rule, value), path});
  }

  /// The keys that say more than the value of one option.
  void read_in_code(const std::string& path, const Json& value) {
    if (path == "optimizer.params.betas") {
      if (!value.is_array() || value.size() != 2) throw BadValue("expects a list of two numbers");
      for (const size_t i : {0, 1}) {
        const std::string option = fmt::format("adam_beta{}", i + 1);
        reading_.values.push_back({option, coerce_json(table_.at(option).rule, value[i]), path});
      }
    } else if (path == "scheduler.params.total_num_steps") {
      reading_.total_num_steps = coerce_json({.kind = Kind::integer}, value).get<int64_t>();
    } else if (path == "scheduler.params.warmup_type") {
      const std::string word =
          lower_case(coerce_json({.kind = Kind::text}, value).get<std::string>());
      if (word != "linear" && word != "log") throw BadValue("expects linear or log");
      reading_.logarithmic_warmup = word == "log";
    }  // the types were read before their sections
  }

  /// Reads `type` of optimizer and scheduler; false when it is refused, and the rest is moot.
  bool accepts_type(const std::string& path, const Json& section) {
    if (path != "optimizer" && path != "scheduler") return true;
    const auto type = section.find("type");
    if (type == section.end()) {
      problem("{}.type is missing in {}: name it, or leave {} out", path, reading_.source, path);
      return false;
    }
    if (is_auto(*type)) return true;
    const std::string word = type->is_string() ? type->get<std::string>() : "";
    const bool accepted =
        path == "optimizer" ? accept_optimizer(word) : accept_scheduler(word, section);
    if (!accepted) {
      bad_value(path + ".type", *type,
                path == "optimizer"
                    ? "not supported yet; AdamW, Adam and SGD are"
                    : "not supported yet; WarmupLR and WarmupDecayLR are, and without a scheduler "
                      "section --lr_scheduler_type");
    }
    return accepted;
  }

  bool accept_optimizer(const std::string& type) {
    const std::string word = lower_case(type);
    if (word != "adam" && word != "adamw" && word != "sgd") return false;
    reading_.values.push_back(
        {"optim", word == "sgd" ? "sgd" : "adamw", fmt::format("optimizer.type ({})", type)});
    return true;
  }

  bool accept_scheduler(const std::string& type, const Json& section) {
    const std::string word = lower_case(type);
    if (word != "warmuplr" && word != "warmupdecaylr") return false;
    if (!section.contains("params") || !section["params"].contains("warmup_num_steps")) {
      problem("scheduler.params.warmup_num_steps is missing in {}: give a number, or \"auto\"",
              reading_.source);
    }
    const std::string ours = word == "warmuplr" ? "constant_with_warmup" : "linear";
    reading_.values.push_back(
        {"lr_scheduler_type", ours, fmt::format("scheduler.type ({})", type)});
    reading_.logarithmic_warmup = true;  // DeepSpeed's default
    reading_.notices.push_back(fmt::format(
        "scheduler.type in {} is taken as lr_scheduler_type {}; DeepSpeed's own lags one update "
        "behind it",
        reading_.source, ours));
    return true;
  }

  void report_ignored() {
    for (const auto& [why, paths] : ignored_) {
      std::string names;
      for (const std::string& path : paths) names += (names.empty() ? "" : ", ") + path;
      reading_.notices.push_back(fmt::format("{} in {} {} no effect: {}", names, reading_.source,
                                             paths.size() == 1 ? "has" : "have", why));
    }
  }

  const OptionTable& table_;
  DeepspeedReading reading_;
  std::map<std::string_view, DeepspeedKey> keys_;
  std::map<std::string, std::string, std::less<>> aliases_;
  std::map<std::string_view, std::vector<std::string>> ignored_;
};

}  // namespace

DeepspeedReading read_deepspeed(const std::string& source, const OptionTable& table) {
  const auto first = source.find_first_not_of(" \t\n");
  const bool is_inline = first != std::string::npos && source[first] == '{';
  const std::string name = is_inline ? "the DeepSpeed JSON" : printable(source);
  DeepspeedReading failed;
  failed.source = name;
  constexpr JsonLimits kLimits = {.max_bytes = 1 << 20, .max_depth = 32};
  try {
    const Json root = is_inline ? parse_json(source, name, kLimits) : read_json(source, kLimits);
    return SchemaReader(table, name).read(root);
  } catch (const DataError& error) {
    failed.problems.push_back(error.what());
  } catch (const DeviceError& error) {
    failed.problems.push_back(fmt::format("deepspeed = {}: {}", name, error.what()));
  }
  return failed;
}

}  // namespace trireme::config
