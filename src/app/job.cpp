#include "app/job.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "accel/cuda_loader.h"
#include "base/environment.h"
#include "cpu/communicator.h"
#include "cuda/plan_rules.h"
#include "host/cpu_topology.h"

namespace trireme::app {

namespace {

std::unique_ptr<device::Backend> open_cpu(const launch::Ranks& ranks,
                                          const config::RunConfig& config, launch::World& world) {
  cpu::WorldOptions options;
  options.rank = ranks.rank;
  options.world_size = ranks.world_size;
  options.host = world.host();
  options.timeout = std::chrono::seconds(config.ddp_timeout);
  cpu::DeviceOptions device;
  device.delay_collectives = std::chrono::milliseconds(config.debug_comm_delay_ms);
  const int threads =
      std::max(1, host::read_cpu_topology().usable_cores() / ranks.local_world_size);
  return std::make_unique<cpu::Backend>(cpu::connect_processes(world.store(), options), threads,
                                        device);
}

/// Of the user, on this machine; "" where there is none.
std::string algorithm_cache(const config::RunConfig& config) {
  if (config.algorithm_cache == "none") return {};
  if (config.algorithm_cache != "auto") return config.algorithm_cache;
  const auto cache = user_cache(process_variables());
  return cache ? (*cache / "trireme").string() : std::string();
}

std::unique_ptr<device::Backend> open_cuda(device::BackendMaker& maker, const launch::Ranks& ranks,
                                           const config::RunConfig& config, launch::World& world,
                                           bool deterministic) {
  device::RankSite site;
  site.deterministic = deterministic;
  site.rank = ranks.rank;
  site.world_size = ranks.world_size;
  site.local_rank = ranks.local_rank;
  site.store = &world.store();
  site.algorithm_cache = algorithm_cache(config);
  site.wire_sums = config.reduce_dtype == config::Precision::bfloat16;
  site.timeout = std::chrono::seconds(config.ddp_timeout);
  site.delay_collectives = std::chrono::milliseconds(config.debug_comm_delay_ms);
  return maker.open(site);
}

}  // namespace

OpeningMachine::OpeningMachine(const config::RunConfig& config, int local_rank) {
  if (config.device == config::DeviceChoice::cpu) return;
  cuda_ = accel::start_cuda({config.device == config::DeviceChoice::cuda, local_rank});
}

Machine OpeningMachine::get() {
  Machine machine;
  if (cuda_.valid()) machine.cuda = cuda_.get();
  if (machine.cuda) machine.token_multiple = machine.cuda->token_multiple();
  return machine;
}

bool repeats_bits(const config::RunConfig& config, const model::ModelGraph& model,
                  int64_t longest) {
  using config::Deterministic;
  if (config.deterministic != Deterministic::automatic) {
    return config.deterministic == Deterministic::yes;
  }
  const model::ModelConfig& c = model.config;
  return cuda::repeats_cheaply({static_cast<double>(model.num_parameters()), c.num_layers,
                                c.num_heads, c.head_dim, longest});
}

Job join_job(Machine& machine, const launch::Ranks& ranks, const config::RunConfig& config,
             bool deterministic) {
  Job job;
  launch::WorldSettings settings;
  settings.shared_folder = config.output_dir;
  job.world = launch::connect_world(ranks, settings);
  job.ranks = std::make_unique<checkpoint::StoreCoordinator>(
      job.world->store(), ranks.rank, ranks.world_size, std::chrono::seconds(config.ddp_timeout));
  job.backend = machine.cuda ? open_cuda(*machine.cuda, ranks, config, *job.world, deterministic)
                             : open_cpu(ranks, config, *job.world);
  return job;
}

}  // namespace trireme::app
