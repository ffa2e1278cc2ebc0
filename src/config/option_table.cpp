#include "config/option_table.h"

#include <algorithm>

#include "base/error.h"
#include "config/value.h"

namespace trireme::config {

OptionTable::OptionTable(std::vector<Option> rows) : rows_(std::move(rows)) {
  const auto enter = [&](std::string_view name, const Option& row) {
    check(by_name_.emplace(name, &row).second, "the option table holds {} twice", name);
    names_.push_back(name);
  };
  for (const Option& row : rows_) {
    enter(row.name, row);
    for (const std::string_view alias : row.aliases) enter(alias, row);
  }
}

OptionTable::Match OptionTable::find(std::string_view name) const {
  std::string key(name);
  std::ranges::replace(key, '-', '_');
  if (const auto found = by_name_.find(key); found != by_name_.end()) return {found->second};
  if (!key.starts_with("no_")) return {};
  const auto found = by_name_.find(std::string_view(key).substr(3));
  if (found == by_name_.end() || found->second->rule.kind != Kind::boolean) return {};
  const Option& row = *found->second;
  const bool may_be_on = row.support == Support::honoured  ? row.get && row.get(RunConfig{}) == true
                         : row.support == Support::refused ? is_neutral(row.neutral, true)
                                                           : true;
  return may_be_on ? Match{&row, true} : Match{};
}

const Option& OptionTable::at(std::string_view name) const {
  const auto found = by_name_.find(name);
  check(found != by_name_.end(), "the option table does not hold {}", name);
  return *found->second;
}

}  // namespace trireme::config
