// YAML and JSON files as one kind of value.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace trireme::config {

/// YAML as JSON: every scalar is a string, to be read by the rule of its option (`1e-5`, `yes`,
/// `auto`), but for null (`~`, `null`, nothing). Bounded in size, depth and, through aliases,
/// growth. Throws DataError "origin:line: what"; a key given twice and `<<` are errors.
Json parse_yaml(std::string_view text, std::string_view origin);

/// A file that ends in .json, .yaml or .yml. Throws DataError, or DeviceError when it cannot be
/// read.
Json read_document(const std::string& path);

}  // namespace trireme::config
