// A whole training run of one rank: from the configuration to the exported model.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/coordinator.h"
#include "config/parse.h"
#include "device/backend.h"
#include "model/graph.h"
#include "train/run_data.h"
#include "train/start_times.h"

namespace trireme::train {

/// The model that a configuration names; its folder takes the place of a hub id there. Resolves what
/// depends on it and on the number of ranks (`host_ranks`: those of one host; 0: all).
model::ModelGraph resolve_model(config::ParseResult& parsed, int64_t world_size,
                                int64_t host_ranks = 0);

/// The gradient was not finite for max_consecutive_skips steps in a row.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Trains, saves, evaluates and exports as `parsed.config` says; rank 0 prints. Collective over the
/// ranks. Everything borrowed outlives the call. `times`: what the start has taken so far.
///
/// Errors that every rank meets alike: ConfigError, DataError, Diverged, checkpoint::AgreedError.
/// DeviceError and CommError are one rank's own.
void run_training(const config::ParseResult& parsed, const model::ModelGraph& model, RunData& data,
                  device::Backend& backend, checkpoint::Coordinator& ranks,
                  StartTimes times = StartTimes(StartTimes::Clock::now()));

}  // namespace trireme::train
