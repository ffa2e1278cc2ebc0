// From what people write to checked values.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "config/option.h"

namespace trireme::config {

/// A value that does not fit; `what()` is the remedy ("expects an integer").
class BadValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value from the command line. Lists are given with commas or spaces between the items. Throws
/// BadValue.
Json coerce_text(const ValueRule& rule, std::string_view text);

/// A value from a file; strings are read as from the command line. Throws BadValue.
Json coerce_json(const ValueRule& rule, const Json& value);

/// The value checked by the rule of `row`; a refused row takes only its neutral values. Throws
/// BadValue.
Json checked_value(const Option& row, const Json& value);

/// The object that a `json` value is, or that lies in the file it names; "" is an empty one. Throws
/// BadValue.
Json given_object(const Json& value);

/// The value as a short word for a message or a table.
std::string shown(const Json& value);

/// ASCII letters made small.
std::string lower_case(std::string_view text);

/// "at least 1", "in [0, 1)"; empty where everything is allowed.
std::string range_words(const Range& range);

/// A row that is not honoured takes "none" for any kind; then the value is null.
bool is_neutral(const std::vector<Json>& neutral, const Json& value);

/// "block", "block:4,ffn:2": throws BadValue.
std::vector<RecomputeSpan> parse_recompute(std::string_view text);
std::string recompute_words(const std::vector<RecomputeSpan>& spans);

/// "4,5,5,4"; "" or "none" for none: throws BadValue.
std::vector<int64_t> parse_block_counts(std::string_view text);
/// "3:5", "4" (one step), "none": throws BadValue.
StepRange parse_step_range(std::string_view text);
std::string step_range_words(const StepRange& range);

}  // namespace trireme::config
