// Everything that is wrong, told at once.
#pragma once

#include <string>
#include <vector>

namespace trireme::config {

/// Does nothing for no line. Throws ConfigError: the line itself, or "N things stand in the way:"
/// and one line each, at most 50.
void throw_if_any(const std::vector<std::string>& lines);

}  // namespace trireme::config
