// Words for people: sizes, lists, and the name somebody probably meant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// "0 B", "512 B", "1.5 KiB", "13.2 GiB": three or four significant digits, binary units.
std::string human_bytes(int64_t bytes);

/// Number of inserted, deleted, replaced or swapped neighbouring letters between two names, where
/// case is ignored and '-' equals '_'. At most `limit` + 1 is reported.
int64_t name_distance(std::string_view a, std::string_view b, int64_t limit);

/// The name nearest to `word`, or "" when none is near enough to be meant: distance at most a third
/// of the longer name, and at least 1; words that a name begins with count as 1. Ties: the earlier.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> names);

/// " (did you mean 'x'?)" or "".
std::string did_you_mean(std::string_view word, std::span<const std::string_view> names);

/// True for well-formed UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

/// A name or text from a file, made fit for one line of a message: control characters and broken
/// UTF-8 become '?', and it is cut to `max_bytes` with "...".
std::string printable(std::string_view text, size_t max_bytes = 120);

/// The parts between the separators; of "" one, which is empty.
std::vector<std::string_view> split(std::string_view text, char separator);

/// "a, b, c and 4 more".
std::string join_some(std::span<const std::string> items, size_t max_items);

}  // namespace trireme
