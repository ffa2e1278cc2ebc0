#include "launch/ranks.h"

#include <array>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "launch/slurm.h"
#include "launch/variables.h"

namespace trireme::launch {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kMostPorts = 65535;
constexpr int64_t kMostNumbers = std::numeric_limits<uint32_t>::max();

std::optional<int64_t> number(const Environment& environment, std::string_view name, int64_t least,
                              int64_t most) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw ConfigError(name, *text, fmt::format("must be a number from {} to {}", least, most));
  }
  return value;
}

int port_or_none(const Environment& environment) {
  return static_cast<int>(number(environment, "MASTER_PORT", 1, kMostPorts).value_or(0));
}

int required(const Environment& environment, std::string_view name, int least, int most,
             std::string_view reason) {
  if (const auto value = number(environment, name, least, most)) return static_cast<int>(*value);
  throw ConfigError(name, "unset", fmt::format("set it, for {}", reason));
}

/// How one kind of launcher calls the four numbers.
struct Names {
  std::string_view rank, world_size, local_rank, local_world_size;
};

void check_numbers(const Ranks& ranks, const Names& names) {
  if (ranks.rank >= ranks.world_size) {
    throw ConfigError(names.rank, std::to_string(ranks.rank),
                      fmt::format("must be below {} = {}", names.world_size, ranks.world_size));
  }
  if (ranks.local_world_size > ranks.world_size) {
    throw ConfigError(names.local_world_size, std::to_string(ranks.local_world_size),
                      fmt::format("must not exceed {} = {}", names.world_size, ranks.world_size));
  }
  if (ranks.local_rank >= ranks.local_world_size) {
    throw ConfigError(
        names.local_rank, std::to_string(ranks.local_rank),
        fmt::format("must be below {} = {}", names.local_world_size, ranks.local_world_size));
  }
}

// RANK, WORLD_SIZE, LOCAL_RANK ---------------------------------------------------------------

std::optional<Ranks> from_torch(const Environment& environment) {
  std::string_view trigger;
  for (const std::string_view name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) {
    if (environment(name)) trigger = name;
  }
  if (trigger.empty()) return std::nullopt;
  const std::string reason = fmt::format("{} is set", trigger);
  Ranks ranks;
  ranks.world_size = required(environment, "WORLD_SIZE", 1, kMostRanks, reason);
  ranks.rank = required(environment, "RANK", 0, kMostRanks, reason);
  ranks.local_rank = required(environment, "LOCAL_RANK", 0, kMostRanks, reason);
  Names names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "WORLD_SIZE"};
  ranks.local_world_size = ranks.world_size;
  for (const std::string_view name : {"LOCAL_SIZE", "LOCAL_WORLD_SIZE"}) {
    const auto local = number(environment, name, 1, kMostRanks);
    if (!local) continue;
    names.local_world_size = name;
    ranks.local_world_size = static_cast<int>(*local);
  }
  check_numbers(ranks, names);
  if (ranks.one_host() && ranks.local_rank != ranks.rank) {
    throw ConfigError("LOCAL_RANK", std::to_string(ranks.local_rank),
                      fmt::format("must equal RANK = {} when all {} ranks share a host; set "
                                  "LOCAL_WORLD_SIZE when they do not",
                                  ranks.rank, ranks.world_size));
  }
  ranks.master_addr = environment("MASTER_ADDR").value_or("");
  ranks.master_port = port_or_none(environment);
  if (ranks.world_size > 1 && !environment(kStore)) {
    const std::string several = fmt::format("WORLD_SIZE = {}", ranks.world_size);
    if (ranks.master_addr.empty()) {
      throw ConfigError("MASTER_ADDR", "unset",
                        fmt::format("set it to the host of rank 0, for {}", several));
    }
    required(environment, "MASTER_PORT", 1, kMostPorts, several);
  }
  ranks.port_taken = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  ranks.job = fmt::format("{}:{}", ranks.master_addr, ranks.master_port);
  for (const char* name : {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    if (const auto text = environment(name)) ranks.job += "/" + *text;
  }
  return ranks;
}

// MPI ----------------------------------------------------------------------------------------

struct Mpi {
  std::string_view launcher;
  Names names;
  std::string_view trigger;  // PMI_RANK alone says nothing: Slurm sets it too
  std::array<std::string_view, 2> job;
};

constexpr std::array<Mpi, 3> kMpi = {{
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE"},
     "OMPI_COMM_WORLD_RANK",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"MPICH",
     {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
     "MPI_LOCALRANKID",
     {}},
    {"MVAPICH2",
     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
      "MV2_COMM_WORLD_LOCAL_SIZE"},
     "MV2_COMM_WORLD_RANK",
     {}},
}};

std::optional<Ranks> from_mpi(const Environment& environment, const Mpi& mpi) {
  if (!environment(mpi.trigger)) return std::nullopt;
  const std::string reason = fmt::format("{} is set", mpi.trigger);
  const Names& names = mpi.names;
  Ranks ranks;
  ranks.world_size = required(environment, names.world_size, 1, kMostRanks, reason);
  ranks.rank = required(environment, names.rank, 0, kMostRanks, reason);
  ranks.local_rank = required(environment, names.local_rank, 0, kMostRanks, reason);
  ranks.local_world_size = required(environment, names.local_world_size, 1, kMostRanks, reason);
  check_numbers(ranks, names);
  if (ranks.world_size == 1) return ranks;
  ranks.master_port = port_or_none(environment);
  ranks.master_addr = environment("MASTER_ADDR").value_or(ranks.one_host() ? "127.0.0.1" : "");
  if (ranks.master_addr.empty()) {
    throw ConfigError(
        "MASTER_ADDR", "unset",
        fmt::format("set it to the host of rank 0, for {} does not say it", mpi.launcher));
  }
  ranks.job = fmt::format("{}:{}", ranks.master_addr, ranks.master_port);
  for (const std::string_view name : mpi.job) {
    if (name.empty()) continue;
    if (const auto text = environment(name)) return ranks.job += "/" + *text, ranks;
  }
  if (ranks.master_port == 0) {
    throw ConfigError("MASTER_PORT", "unset",
                      fmt::format("set it to a free port, for {} gives the job no name by which "
                                  "its ranks could find each other",
                                  mpi.launcher));
  }
  return ranks;
}

// Slurm --------------------------------------------------------------------------------------

template <typename Value>
Value read_list(const Environment& environment, std::string_view name,
                const std::optional<Value>& value) {
  if (value) return *value;
  const auto text = environment(name);
  throw ConfigError(name, text.value_or("unset"), "srun sets it; do not change it");
}

std::optional<Ranks> from_slurm(const Environment& environment) {
  if (!environment("SLURM_JOB_ID")) return std::nullopt;
  constexpr int64_t kLastStep = 0xfffffff0;  // those above are batch scripts and shells
  const auto step = number(environment, "SLURM_STEP_ID", 0, kMostNumbers);
  if (!step || *step > kLastStep || !environment("SLURM_PROCID")) {
    const auto tasks = number(environment, "SLURM_NTASKS", 1, kMostRanks).value_or(1);
    if (tasks == 1) return std::nullopt;
    throw ConfigError("SLURM_NTASKS", std::to_string(tasks),
                      "srun did not start this process; start it with srun or with `trireme "
                      "launch`, or unset SLURM_NTASKS for a single process");
  }
  const std::string_view reason = "SLURM_STEP_ID is set";
  const Names names{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                    "SLURM_STEP_TASKS_PER_NODE"};
  Ranks ranks;
  ranks.world_size = required(environment, names.world_size, 1, kMostRanks, reason);
  ranks.rank = required(environment, names.rank, 0, kMostRanks, reason);
  ranks.local_rank = required(environment, names.local_rank, 0, kMostRanks, reason);
  const int node = required(environment, "SLURM_NODEID", 0, kMostRanks, reason);
  ranks.local_world_size =
      read_list(environment, names.local_world_size,
                tasks_of_node(environment(names.local_world_size).value_or(""), node));
  check_numbers(ranks, names);
  if (ranks.world_size == 1) return ranks;
  const int64_t job = *number(environment, "SLURM_JOB_ID", 0, kMostNumbers);
  constexpr std::string_view kHosts = "SLURM_STEP_NODELIST";
  const auto given = environment("MASTER_ADDR");
  ranks.master_addr =
      given ? *given : read_list(environment, kHosts, first_host(environment(kHosts).value_or("")));
  ranks.master_port = port_or_none(environment);
  if (ranks.master_port == 0) ranks.master_port = port_of_step(job, *step);
  ranks.job = fmt::format("{}:{}/slurm/{}.{}", ranks.master_addr, ranks.master_port, job, *step);
  return ranks;
}

}  // namespace

Environment process_environment() { return process_variables(); }

Ranks discover_ranks(const Environment& environment) {
  if (const auto ranks = from_torch(environment)) return *ranks;
  for (const Mpi& mpi : kMpi) {
    if (const auto ranks = from_mpi(environment, mpi)) return *ranks;
  }
  return from_slurm(environment).value_or(Ranks{});
}

int64_t restart_count(const Environment& environment) {
  for (const char* name : {kEpoch, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (const auto count = number(environment, name, 0, kMostNumbers)) {
      return *count;
    }
  }
  return 0;
}

}  // namespace trireme::launch
