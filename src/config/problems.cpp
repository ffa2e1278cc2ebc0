#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace trireme::config {
namespace {
constexpr size_t kMaxLines = 50;
}  // namespace

void throw_if_any(const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  if (lines.size() == 1) throw ConfigError(lines.front());
  std::string message = fmt::format("{} things stand in the way:", lines.size());
  const size_t told = std::min(lines.size(), kMaxLines);
  for (size_t i = 0; i < told; ++i) message += "\n  " + lines[i];
  if (told < lines.size()) message += fmt::format("\n  and {} more", lines.size() - told);
  throw ConfigError(message);
}

std::string said(const std::string& origin, const std::string& value) {
  const auto in = origin.find(" in ");
  if (in == std::string::npos) return fmt::format("{} {}", origin, value);
  return fmt::format("{} = {}{}", origin.substr(0, in), value, origin.substr(in));
}

}  // namespace trireme::config
