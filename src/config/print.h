// What people read: the effective configuration, help, and the reference.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "config/run_config.h"

namespace trireme::config {

/// Every honoured setting by its name, in the order of the table; "auto" and null where a value is
/// left open. Values are as flags take them.
std::string to_json(const RunConfig& config);

/// The same for people, in groups, one setting a line.
std::string describe(const RunConfig& config);

/// `trireme train --help`: honoured settings in groups, a line or two each. `extra`: the rows of
/// another `verb` that takes the flags of train.
std::string help_text(std::string_view verb = "train", const std::vector<Option>& extra = {});

/// The groups in order of printing, with their titles.
std::vector<std::pair<OptionGroup, std::string_view>> option_groups();

/// docs/configuration.md.
std::string markdown_reference();

}  // namespace trireme::config
