#include "launch/ranks.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace trireme::launch {
namespace {

std::optional<int> number(const Environment& environment, std::string_view name, int least,
                          int most) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw ConfigError(name, *text, fmt::format("must be a number from {} to {}", least, most));
  }
  return value;
}

int required(const Environment& environment, std::string_view name, int least, int most,
             std::string_view reason) {
  if (const auto value = number(environment, name, least, most)) return *value;
  throw ConfigError(name, "unset", fmt::format("set it, for {}", reason));
}

}  // namespace

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Ranks discover_ranks(const Environment& environment) {
  constexpr int kMost = 1 << 20;
  std::string_view trigger;
  for (const std::string_view name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) {
    if (environment(name)) trigger = name;
  }
  Ranks ranks;
  if (trigger.empty()) return ranks;
  const std::string reason = fmt::format("{} is set", trigger);
  ranks.world_size = required(environment, "WORLD_SIZE", 1, kMost, reason);
  ranks.rank = required(environment, "RANK", 0, kMost, reason);
  ranks.local_rank = required(environment, "LOCAL_RANK", 0, kMost, reason);
  std::string_view local_name = "LOCAL_WORLD_SIZE";
  auto local = number(environment, local_name, 1, kMost);
  if (!local) {
    local_name = "LOCAL_SIZE";
    local = number(environment, local_name, 1, kMost);
  }
  ranks.local_world_size = local.value_or(ranks.world_size);
  if (ranks.rank >= ranks.world_size) {
    throw ConfigError("RANK", std::to_string(ranks.rank),
                      fmt::format("must be below WORLD_SIZE = {}", ranks.world_size));
  }
  if (ranks.local_world_size > ranks.world_size) {
    throw ConfigError(local_name, std::to_string(ranks.local_world_size),
                      fmt::format("must not exceed WORLD_SIZE = {}", ranks.world_size));
  }
  if (ranks.local_rank >= ranks.local_world_size) {
    throw ConfigError("LOCAL_RANK", std::to_string(ranks.local_rank),
                      fmt::format("must be below {} = {}", local ? local_name : "WORLD_SIZE",
                                  ranks.local_world_size));
  }
  if (ranks.one_host() && ranks.local_rank != ranks.rank) {
    throw ConfigError("LOCAL_RANK", std::to_string(ranks.local_rank),
                      fmt::format("must equal RANK = {} when all {} ranks share a host; set "
                                  "LOCAL_WORLD_SIZE when they do not",
                                  ranks.rank, ranks.world_size));
  }
  ranks.master_addr = environment("MASTER_ADDR").value_or("");
  ranks.master_port = number(environment, "MASTER_PORT", 1, 65535).value_or(0);
  if (ranks.world_size > 1 && !environment("TRIREME_STORE")) {
    const std::string several = fmt::format("WORLD_SIZE = {}", ranks.world_size);
    if (ranks.master_addr.empty()) {
      throw ConfigError("MASTER_ADDR", "unset",
                        fmt::format("set it to the host of rank 0, for {}", several));
    }
    required(environment, "MASTER_PORT", 1, 65535, several);
  }
  return ranks;
}

}  // namespace trireme::launch
