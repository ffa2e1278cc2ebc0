// This process's place in the job: ranks, store, backend.
#pragma once

#include <future>
#include <memory>

#include "checkpoint/store_coordinator.h"
#include "config/run_config.h"
#include "cpu/backend.h"
#include "device/backend.h"
#include "device/backend_module.h"
#include "launch/world.h"
#include "model/graph.h"

namespace trireme::app {

/// What this machine computes with.
struct Machine {
  std::unique_ptr<device::BackendMaker> cuda;    // null: the CPU
  int64_t token_multiple = cpu::kTokenMultiple;  // micro-batches are padded to
};

/// The device that the configuration asks for; without a wish CUDA where there is a GPU. CUDA takes
/// seconds to start: constructing begins it, with the GPU of this local rank.
class OpeningMachine {
 public:
  OpeningMachine(const config::RunConfig& config, int local_rank);
  /// Waits for it. ConfigError when it cannot be had. Once.
  Machine get();

 private:
  std::future<std::unique_ptr<device::BackendMaker>> cuda_;  // not valid: the CPU
};

/// Whether gradients of attention on a GPU repeat bit for bit in this run, whose longest sequence
/// has so many tokens.
bool repeats_bits(const config::RunConfig& config, const model::ModelGraph& model, int64_t longest);

/// Members end in reverse order: the backend before the store it met its peers through.
struct Job {
  std::unique_ptr<launch::World> world;
  std::unique_ptr<checkpoint::StoreCoordinator> ranks;
  std::unique_ptr<device::Backend> backend;
};

/// Meets the other ranks and opens this rank's device. Collective. `machine` outlives the job.
Job join_job(Machine& machine, const launch::Ranks& ranks, const config::RunConfig& config,
             bool deterministic);

}  // namespace trireme::app
