// Which rank this process is: what launchers say in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// Looks a variable up; nullopt when it is unset or empty.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment process_environment();

struct Ranks {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;  // empty for a single process
  int master_port = 0;
  bool one_host() const { return local_world_size == world_size; }
};

/// RANK, WORLD_SIZE and LOCAL_RANK together, with MASTER_ADDR and MASTER_PORT when there are
/// several ranks and no TRIREME_STORE; LOCAL_WORLD_SIZE (or deepspeed's LOCAL_SIZE) is WORLD_SIZE
/// when absent. None of the first three set: a single process. Throws ConfigError naming the
/// variable that is missing, malformed or contradicts another.
Ranks discover_ranks(const Environment& environment);

}  // namespace trireme::launch
