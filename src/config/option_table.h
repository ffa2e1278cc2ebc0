// Looking rows up by the names people type.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/option.h"

namespace trireme::config {

class OptionTable {
 public:
  /// Names and aliases must be distinct.
  explicit OptionTable(std::vector<Option> rows);
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  struct Match {
    const Option* row = nullptr;  // null: unknown
    bool negated = false;         // --no_NAME
  };
  /// '-' equals '_'; `no_NAME` is known for booleans that are true by default.
  Match find(std::string_view name) const;
  /// The row of that very name, which must exist.
  const Option& at(std::string_view name) const;
  const std::vector<Option>& rows() const { return rows_; }
  /// All names and aliases, for suggestions.
  const std::vector<std::string_view>& names() const { return names_; }

 private:
  std::vector<Option> rows_;
  std::unordered_map<std::string_view, const Option*> by_name_;
  std::vector<std::string_view> names_;
};

}  // namespace trireme::config
