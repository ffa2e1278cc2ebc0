// From an argument list to (row, value) pairs; nothing is applied yet.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/option_table.h"

namespace trireme::config {

struct TypedOption {
  const Option* row = nullptr;
  std::string spelled;  // as typed, without dashes, '_' for '-'
  Json value;           // checked; null where the row's "no value" word was given
};

struct Arguments {
  std::vector<TypedOption> options;  // in order
  std::vector<std::string> problems;
  bool help = false;
};

/// Never throws ConfigError; what is wrong is in `problems`.
Arguments read_arguments(std::span<const std::string> args, const OptionTable& table);

}  // namespace trireme::config
