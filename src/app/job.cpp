#include "app/job.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"
#include "cpu/backend.h"
#include "cpu/communicator.h"
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

}  // namespace

Job join_job(const launch::Ranks& ranks, const config::RunConfig& config) {
  if (config.device == config::DeviceChoice::cuda) {
    throw ConfigError("device", "cuda", "this binary has no CUDA backend; use --device cpu");
  }
  Job job;
  launch::WorldSettings settings;
  settings.shared_folder = config.output_dir;
  job.world = launch::connect_world(ranks, settings);
  job.ranks = std::make_unique<checkpoint::StoreCoordinator>(
      job.world->store(), ranks.rank, ranks.world_size, std::chrono::seconds(config.ddp_timeout));
  job.backend = open_cpu(ranks, config, *job.world);
  return job;
}

}  // namespace trireme::app
