// What accelerate knows of a run: its YAML, and the environment that `accelerate launch` makes.
#pragma once

#include <string>

#include "config/parse.h"
#include "config/schema.h"

namespace trireme::config {

Schema accelerate_schema();

/// One variable. `path`: the key of accelerate's YAML that it stands for.
struct AccelerateVariable {
  std::string_view name;
  std::string_view path;
};
/// Besides FSDP_NAME and PARALLELISM_CONFIG_NAME for every key of those sections.
std::vector<AccelerateVariable> accelerate_variables();

/// A file (YAML or JSON), or the JSON itself. Never throws ConfigError.
Reading read_accelerate_file(const std::string& given, const OptionTable& table);
/// Nothing when accelerate did not start this process.
Reading read_accelerate_environment(const Environment& environment, const OptionTable& table);

}  // namespace trireme::config
