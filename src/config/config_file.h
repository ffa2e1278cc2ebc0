// The first argument of train and plan: a YAML or JSON file with the settings of a run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/import_reader.h"

namespace trireme::config {

/// Reads a file (none when `path` is empty) with `key=value` overrides patched in, as OmegaConf
/// has them: `a.b=1` reaches into sections and lists, values are YAML. A file of LLaMA-Factory or
/// axolotl is known by its keys and imported by their tables; the names of any other are those of
/// the option table. Never throws ConfigError.
Import read_config_file(const std::string& path,
                        const std::vector<std::pair<std::string, std::string>>& overrides,
                        const OptionTable& table);

}  // namespace trireme::config
