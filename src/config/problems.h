// Everything that is wrong, told at once.
#pragma once

#include <string>
#include <vector>

namespace trireme::config {

/// Does nothing for no line. Throws ConfigError: the line itself, or "N things stand in the way:"
/// and one line each, at most 50.
void throw_if_any(const std::vector<std::string>& lines);

/// A setting with its value as its origin (ParseResult::origins) puts it: "--seed 1", or
/// "optimizer.params.lr = 1e-05 in ds.json".
std::string said(const std::string& origin, const std::string& value);

}  // namespace trireme::config
