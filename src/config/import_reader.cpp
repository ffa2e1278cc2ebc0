#include "config/import_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "config/value.h"

namespace trireme::config {

bool ImportReader::read_unknown(const std::string& path, const Json& value) {
  const Option* row = table().find(path).row;
  if (row == nullptr || path.starts_with("no_")) {
    std::vector<std::string_view> names = names_in("");
    names.insert(names.end(), table().names().begin(), table().names().end());
    problem("unknown key {} in {}{}", printable(path), reading().source, did_you_mean(path, names));
    return true;
  }
  if (value.is_null() || value == "") return true;  // not said
  try {
    const Json checked = checked_value(*row, value);
    if (row->support == Support::meaningless) {
      on_ignored(path, value, row->help);
    } else if (row->support == Support::honoured) {
      set(row->name, value, path);
    }
  } catch (const BadValue& bad) {
    bad_value(path, value, bad.what());
  }
  return true;
}

void ImportReader::on_set(const std::string& path, const Json& value, const Setting& setting) {
  const std::string& option = setting.option;
  const std::string now = shown(setting.value);
  add_line(path, shown(value), now == shown(value) ? option : fmt::format("{} {}", option, now));
}

void ImportReader::on_ignored(const std::string& path, const Json& value, std::string_view why) {
  add_line(path, shown(value), fmt::format("nothing: {}", why));
}

void ImportReader::set_narrow_state(const std::string& path) {
  set("master_dtype", "bfloat16", path);
  set("moment_dtype", "bfloat16", path);
}

void ImportReader::set_default(std::string_view option, const Json& value, std::string_view key) {
  if (!sets(option)) set(option, value, fmt::format("{}, left out,", key));
}

bool ImportReader::sets(std::string_view option) {
  return std::ranges::any_of(reading().settings, [&](const Setting& setting) {
    return setting.option == option || table().at(setting.option).maps_to == option;
  });
}

void ImportReader::refuse(const std::string& key, const Json& value, std::string_view why) {
  bad_value(key, value, why);
}

void ImportReader::add_line(std::string_view key, std::string_view value, std::string_view became) {
  constexpr size_t kWidest = 40;
  fmt::format_to(std::back_inserter(lines_), "  {:<31} {:<23} {}\n", key, printable(value, kWidest),
                 became);
}

Import ImportReader::read_import(const Json& root, std::string_view program) {
  Import result;
  result.reading = read(root);
  result.table = fmt::format("Imported from {} ({}):\n{}", result.reading.source, program, lines_);
  return result;
}

}  // namespace trireme::config
