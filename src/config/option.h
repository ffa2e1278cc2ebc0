// One row of the option table: all the program knows of one setting. The same rows drive parsing,
// `--help`, docs/configuration.md and the printed effective configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"

namespace trireme::config {

/// `steps`: a whole number of steps, or a share of all steps below 1. `json`: any JSON value, or
/// the path of a file. `document`: the path of a file, or the JSON that could lie in it, as a
/// string.
enum class Kind { boolean, integer, real, steps, text, path, choice, list, json, document };
/// For tables.
inline constexpr auto kBool = Kind::boolean;
inline constexpr auto kInt = Kind::integer;
inline constexpr auto kReal = Kind::real;
inline constexpr auto kText = Kind::text;
inline constexpr auto kJson = Kind::json;

/// honoured: it acts. meaningless: it is accepted, has no effect here and the reason is reported.
/// refused: only its neutral values are accepted, every other one is a ConfigError with the reason.
enum class Support { honoured, meaningless, refused };

enum class OptionGroup { model, data, steps, optimizer, numbers, layout, output, proof, command };

/// A word of a `choice`. `means`: the word stored instead (a synonym); `refusal`: why it cannot be.
struct Choice {
  std::string_view word;
  std::string_view means;
  std::string_view refusal;
};

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

/// What a value must look like.
struct ValueRule {
  Kind kind = Kind::text;
  std::vector<Choice> choices = {};
  Range range = {};
  /// The word for "no value", shown and accepted: "auto" or "none"; empty: there is always one.
  std::string_view unset = {};
};

struct Option {
  std::string_view name;
  std::vector<std::string_view> aliases;
  OptionGroup group = OptionGroup::model;
  Support support = Support::honoured;
  ValueRule rule;
  /// The value meant when the flag stands alone; a boolean always may.
  std::optional<std::string_view> bare;
  /// Honoured: one line of help. Otherwise the reason, which reads on after "NAME = VALUE: " or
  /// "NAME has no effect: ".
  std::string_view help;
  std::vector<Json> neutral;

  /// Honoured rows: how a checked value reaches RunConfig, and back. `set` may throw BadValue.
  std::function<void(RunConfig&, const Json&)> set;
  std::function<Json(const RunConfig&)> get;

  /// Another spelling of an option whose values differ (`warmup_ratio`): `translate` gives the
  /// value for the row named `maps_to`, or null when it says nothing. Such a row has no `set` and
  /// `get`.
  std::string_view maps_to;
  Json (*translate)(const Json&) = nullptr;

  Option also(std::initializer_list<std::string_view> names) &&;
  Option at_least(double low) &&;
  Option above(double low) &&;
  Option between(double low, double high) &&;  // both included
  Option below(double low, double high) &&;    // [low, high)
  Option words(std::initializer_list<Choice> more) &&;
  Option unset_as(std::string_view word) &&;
  Option alone_means(std::string_view value) &&;
};

/// Rows of `trireme train` (and, with more of its own, of `trireme plan`), in order of printing.
std::vector<Option> train_options();

/// A row that a command adds for itself: `--name` writes `target`, which must outlive parsing.
/// T: bool, int64_t, double or std::string.
template <typename T>
Option extra_option(std::string_view name, T& target, std::string_view help);

}  // namespace trireme::config
