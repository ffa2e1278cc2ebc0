// Rules that take more than one setting.
#pragma once

#include <string>
#include <vector>

#include "config/parse.h"

namespace trireme::config {

/// One sentence for each rule that `result.config` breaks; adds notices for settings that another
/// one leaves without effect.
std::vector<std::string> validate(ParseResult& result, const ParseSettings& settings);

}  // namespace trireme::config
