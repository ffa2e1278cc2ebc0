// Environment variables, and what follows from them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// Looks a variable up; nullopt when it is unset or empty.
using Variables = std::function<std::optional<std::string>(std::string_view name)>;
/// Those of this process.
Variables process_variables();

/// Where programs keep what they can make again: XDG_CACHE_HOME, else ~/.cache; nullopt when HOME is
/// unset too.
std::optional<std::filesystem::path> user_cache(const Variables& variables);

}  // namespace trireme
