#include "config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "config/value.h"

namespace trireme::config {
namespace {

constexpr JsonLimits kLimits = {.max_bytes = 1 << 20, .max_depth = 32};

bool is_auto(const Json& value) { return value == "auto"; }

}  // namespace

void Schema::honour(std::string_view path, std::string_view option) {
  keys_.push_back({.path = path, .support = Support::honoured, .option = option});
}
void Schema::honour_in_code(std::string_view path, Kind kind, std::string_view why) {
  keys_.push_back({.path = path, .support = Support::honoured, .kind = kind, .why = why});
}
void Schema::ignore(std::string_view path, Kind kind, std::string_view why,
                    std::vector<Json> neutral) {
  keys_.push_back({.path = path,
                   .support = Support::meaningless,
                   .kind = kind,
                   .neutral = std::move(neutral),
                   .why = why});
}
void Schema::refuse(std::string_view path, Kind kind, std::vector<Json> neutral,
                    std::string_view why) {
  keys_.push_back({.path = path,
                   .support = Support::refused,
                   .kind = kind,
                   .neutral = std::move(neutral),
                   .why = why});
}
void Schema::ignore_all(std::string_view why, Paths paths) {
  for (const std::string_view path : paths) ignore(path, kJson, why);
}
void Schema::refuse_all(Kind kind, const std::vector<Json>& neutral, Paths paths,
                        std::string_view why) {
  for (const std::string_view path : paths) refuse(path, kind, neutral, why);
}
void Schema::alias(std::string_view spelling, std::string_view path) {
  aliases_.emplace_back(spelling, path);
}

void Reading::append(Reading other) {
  const auto move_to = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_to(other.settings, settings);
  move_to(other.notices, notices);
  move_to(other.problems, problems);
}

SchemaReader::SchemaReader(const Schema& schema, const OptionTable& table, std::string source)
    : table_(table) {
  reading_.source = std::move(source);
  for (const SchemaKey& key : schema.keys()) {
    check(keys_.emplace(key.path, &key).second, "the schema holds {} twice", key.path);
  }
  for (const auto& [spelling, path] : schema.aliases()) aliases_.emplace(spelling, path);
}

Reading SchemaReader::read(const Json& root) {
  if (root.is_object()) {
    read_section(root, "");
    finish();
    report_ignored();
  } else {
    problem("{}: expects a JSON object", reading_.source);
  }
  return std::move(reading_);
}

void SchemaReader::bad_value(const std::string& path, const Json& value, std::string_view remedy) {
  problem("{} = {} in {}: {}", label(path), shown(value), reading_.source, remedy);
}

std::string SchemaReader::origin_of(const std::string& path) const {
  return fmt::format("{} in {}", label(path), reading_.source);
}

void SchemaReader::set(std::string_view option, const Json& value, const std::string& path) {
  Setting setting{std::string(option), checked_value(table_.at(option), value), origin_of(path)};
  on_set(path, said_ == nullptr ? value : *said_, setting);
  reading_.settings.push_back(std::move(setting));
}

void SchemaReader::on_ignored(const std::string& path, const Json&, std::string_view why) {
  ignored_[why].push_back(label(path));
}

void SchemaReader::read_in_code(const std::string& path, const Json&) {
  check(false, "nothing reads {}", path);
}
bool SchemaReader::enters(const std::string&, const Json&) { return true; }
bool SchemaReader::read_unknown(const std::string&, const Json&) { return false; }

bool SchemaReader::is_section(const std::string& path) const {
  const auto next = keys_.lower_bound(path + ".");
  return next != keys_.end() && next->first.starts_with(path + ".");
}

void SchemaReader::read_section(const Json& section, const std::string& prefix) {
  for (const auto& [name, value] : section.items()) read_entry(prefix, name, value);
}

void SchemaReader::read_entry(const std::string& prefix, const std::string& name,
                              const Json& value) {
  std::string path = prefix.empty() ? name : prefix + "." + name;
  if (const auto alias = aliases_.find(path); alias != aliases_.end()) path = alias->second;
  const auto key = keys_.find(path);
  const bool section = is_section(path);
  if (section && value.is_object()) {
    if (enters(path, value)) read_section(value, path);
  } else if (key != keys_.end()) {
    read_key(*key->second, path, value);
  } else if (section) {
    if (!value.is_null()) bad_value(path, value, "expects an object");
  } else if (!read_unknown(path, value)) {
    problem("unknown key {} in {}{}", printable(label(path)), reading_.source,
            suggestion(prefix, name));
  }
}

std::vector<std::string_view> SchemaReader::names_in(const std::string& section) const {
  const std::string start = section.empty() ? "" : section + ".";
  std::vector<std::string_view> names;
  for (const auto& [path, key] : keys_) {
    if (!path.starts_with(start)) continue;
    const std::string_view rest = path.substr(start.size());
    names.push_back(rest.substr(0, std::min(rest.find('.'), rest.size())));
  }
  return names;
}

/// The nearest name beside it, else the only place where a key of that very name belongs.
std::string SchemaReader::suggestion(const std::string& prefix, const std::string& name) const {
  std::vector<std::string_view> elsewhere;
  for (const auto& [path, key] : keys_) {
    if (path.substr(path.rfind('.') + 1) == name) elsewhere.push_back(path);
  }
  const std::string words = did_you_mean(name, names_in(prefix));
  if (words.empty() && elsewhere.size() == 1) {
    return fmt::format(" (did you mean '{}'?)", elsewhere.front());
  }
  return words;
}

void SchemaReader::read_key(const SchemaKey& key, const std::string& path, const Json& value) {
  if (value.is_null()) return;
  said_ = &value;
  try {
    if (key.support != Support::honoured) {
      read_other(key, path, value);
    } else if (key.option.empty()) {
      read_in_code(path, value);
    } else if (!is_auto(value) || table_.at(key.option).rule.unset == "auto") {
      set(key.option, value, path);
    }
  } catch (const BadValue& bad) {
    bad_value(path, value, bad.what());
  }
  said_ = nullptr;
}

void SchemaReader::read_other(const SchemaKey& key, const std::string& path, const Json& value) {
  if (is_auto(value)) return;
  const Json checked = coerce_json({.kind = key.kind, .unset = "none"}, value);
  const bool neutral = is_neutral(key.neutral, checked);
  if (key.support == Support::meaningless) {
    if (!neutral) on_ignored(path, value, key.why);
  } else if (!neutral) {
    throw BadValue(std::string(key.why));
  }
}

void SchemaReader::report_ignored() {
  for (const auto& [why, paths] : ignored_) {
    std::string names;
    for (const std::string& path : paths) names += (names.empty() ? "" : ", ") + path;
    reading_.notices.push_back(fmt::format("{} in {} {} no effect: {}", names, reading_.source,
                                           paths.size() == 1 ? "has" : "have", why));
  }
}

Json read_given_json(std::string_view field, const std::string& given, std::string_view name,
                     Reading* reading) {
  const auto first = given.find_first_not_of(" \t\n");
  const bool is_inline = first != std::string::npos && given[first] == '{';
  reading->source = is_inline ? std::string(name) : printable(given);
  std::error_code unreadable;
  if (!is_inline &&
      std::filesystem::status(given, unreadable).type() == std::filesystem::file_type::not_found) {
    reading->problems.push_back(
        fmt::format("{} = {}: there is no such file; give the path of a JSON file, or the JSON "
                    "itself",
                    field, printable(given)));
    return nullptr;
  }
  try {
    return is_inline ? parse_json(given, name, kLimits) : read_json(given, kLimits);
  } catch (const DataError& error) {
    reading->problems.push_back(error.what());
  } catch (const DeviceError& error) {
    reading->problems.push_back(fmt::format("{}: {}", reading->source, error.what()));
  }
  return nullptr;
}

}  // namespace trireme::config
