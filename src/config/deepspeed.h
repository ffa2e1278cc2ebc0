// A DeepSpeed JSON.
#pragma once

#include <string>

#include "config/schema.h"

namespace trireme::config {

Schema deepspeed_schema();

/// `given`: a path, or the JSON itself (it starts with '{'). Never throws ConfigError; an
/// unreadable or malformed file is a problem too.
Reading read_deepspeed(const std::string& given, const OptionTable& table);

}  // namespace trireme::config
