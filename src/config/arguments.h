// From an argument list to settings; nothing is applied yet.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace trireme::config {

struct Arguments {
  std::string config_file;  // the first argument, when it is no flag and no key=value; may be empty
  std::vector<std::pair<std::string, std::string>> overrides;  // key=value, in order
  Reading flags;  // origins are the flags as typed, with '_' for '-'
  bool help = false;
};

/// Never throws ConfigError; what is wrong is in `flags.problems`.
Arguments read_arguments(std::span<const std::string> args, const OptionTable& table);

}  // namespace trireme::config
