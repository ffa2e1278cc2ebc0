#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {

std::string human_bytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
  const char* sign = bytes < 0 ? "-" : "";
  auto value = bytes < 0 ? -static_cast<double>(bytes) : static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}{:.0f} B", sign, value);
  return fmt::format("{}{:.1f} {}", sign, value, kUnits[unit]);
}

namespace {

char folded(char c) {
  if (c == '-') return '_';
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

int64_t name_distance(std::string_view a, std::string_view b, int64_t limit) {
  const auto n = static_cast<int64_t>(a.size());
  const auto m = static_cast<int64_t>(b.size());
  if (std::abs(n - m) > limit) return limit + 1;
  // Three rows of the table of distances between prefixes: two above (for swaps), one above, now.
  std::array<std::vector<int64_t>, 3> rows;
  for (auto& row : rows) row.resize(static_cast<size_t>(m) + 1);
  for (int64_t j = 0; j <= m; ++j) rows[1][j] = j;
  for (int64_t i = 1; i <= n; ++i) {
    auto& [two_above, above, now] = rows;
    now[0] = i;
    int64_t best = i;
    for (int64_t j = 1; j <= m; ++j) {
      const char x = folded(a[i - 1]);
      const char y = folded(b[j - 1]);
      int64_t d = std::min({above[j] + 1, now[j - 1] + 1, above[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y) {
        d = std::min(d, two_above[j - 2] + 1);
      }
      now[j] = d;
      best = std::min(best, d);
    }
    if (best > limit) return limit + 1;
    std::swap(two_above, above);
    std::swap(above, now);
  }
  return std::min(rows[1][m], limit + 1);
}

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> names) {
  std::string_view nearest;
  int64_t nearest_distance = INT64_MAX;
  for (const std::string_view name : names) {
    const auto longest = static_cast<int64_t>(std::max(word.size(), name.size()));
    const int64_t limit = std::max<int64_t>(1, longest / 3);
    const bool cut_short = word.find('_') != std::string_view::npos && name.starts_with(word);
    const int64_t distance = cut_short ? 1 : name_distance(word, name, limit);
    if (distance <= limit && distance < nearest_distance) {
      nearest = name;
      nearest_distance = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> names) {
  const std::string_view nearest = nearest_name(word, names);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest);
}

namespace {

/// Bytes of the well-formed UTF-8 character at the start of `text`; 0 when broken.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;  // overlong
  if (lead == 0xed && byte(1) > 0x9f) return 0;  // surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;  // beyond U+10FFFF
  return length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string result;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const size_t taken = std::max<size_t>(length, 1);
    if (result.size() + taken > max_bytes) return result + "...";
    const bool control = length == 1 && (text[0] < ' ' || text[0] == 0x7f);
    if (length == 0 || control) {
      result += '?';
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(taken);
  }
  return result;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string join_some(std::span<const std::string> items, size_t max_items) {
  std::string result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == max_items) return fmt::format("{} and {} more", result, items.size() - i);
    if (i > 0) result += ", ";
    result += items[i];
  }
  return result;
}

}  // namespace trireme
