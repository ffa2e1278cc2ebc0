// This process's place in the job: ranks, store, backend.
#pragma once

#include <memory>

#include "checkpoint/store_coordinator.h"
#include "config/run_config.h"
#include "device/backend.h"
#include "launch/world.h"

namespace trireme::app {

/// Members end in reverse order: the backend before the store it met its peers through.
struct Job {
  std::unique_ptr<launch::World> world;
  std::unique_ptr<checkpoint::StoreCoordinator> ranks;
  std::unique_ptr<device::Backend> backend;
};

/// Meets the other ranks and opens the device that the configuration names. Collective.
Job join_job(const launch::Ranks& ranks, const config::RunConfig& config);

}  // namespace trireme::app
