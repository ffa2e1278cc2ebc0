#include "base/environment.h"

#include <cstdlib>

namespace trireme {

Variables process_variables() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

std::optional<std::filesystem::path> user_cache(const Variables& variables) {
  if (const auto cache = variables("XDG_CACHE_HOME")) return *cache;
  if (const auto home = variables("HOME")) return std::filesystem::path(*home) / ".cache";
  return std::nullopt;
}

}  // namespace trireme
