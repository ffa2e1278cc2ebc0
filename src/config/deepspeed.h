// A DeepSpeed JSON, read strictly: every key at every depth is honoured, meaningless here, or
// refused by name; an unknown one is an error that names the nearest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option_table.h"

namespace trireme::config {

/// One row of the schema. `support` as in Option; "auto" is accepted for every key and leaves the
/// flag's value, or the default.
struct DeepspeedKey {
  std::string_view path;  // "zero_optimization.stage"
  Support support = Support::honoured;
  /// Honoured: the option that gets the value; its rule checks it. Empty: it says more than one
  /// thing, and the reader knows what.
  std::string_view option = {};
  Kind kind = Kind::json;  // of the others
  std::vector<Json> neutral = {};
  std::string_view why = {};
};

std::vector<DeepspeedKey> deepspeed_keys();

/// Other spellings that DeepSpeed accepts: (spelling, path of the key or section).
std::vector<std::pair<std::string_view, std::string_view>> deepspeed_aliases();

struct DeepspeedValue {
  std::string option;
  Json value;  // as the option's rule wants it; null: the option's "auto"
  std::string key;
};

struct DeepspeedReading {
  std::string source;                  // how messages call the file
  std::vector<DeepspeedValue> values;  // in the order of the file
  /// `scheduler.params.total_num_steps`, when a number: the run must have that length.
  std::optional<int64_t> total_num_steps;
  /// The scheduler warms up along a logarithm, which we have not: no warm-up may be asked for.
  bool logarithmic_warmup = false;
  std::vector<std::string> notices;
  std::vector<std::string> problems;
};

/// `source`: a path, or the JSON itself (it starts with '{'). Never throws ConfigError; an
/// unreadable or malformed file is a problem too.
DeepspeedReading read_deepspeed(const std::string& source, const OptionTable& table);

}  // namespace trireme::config
