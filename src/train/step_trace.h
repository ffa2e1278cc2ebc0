// `--profile_steps A:B`: times of the work of some steps, as a file in the run's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "exec/tracing_device.h"

namespace trireme::train {

/// Between the session and the device when steps are traced, else nothing.
class StepTrace {
 public:
  /// `device` and `model` must outlive it. ConfigError when a run of `total_steps` has none of the
  /// steps.
  StepTrace(const config::RunConfig& config, int64_t total_steps, device::Device& device,
            const model::ModelGraph& model, int rank);

  /// What the session uses.
  device::Device& device();
  exec::EntryObserver* observer() { return tracing_.get(); }

  /// Around the enqueueing of step `number`, counted from 1. After the last one it waits for the
  /// device and writes the file, whose name it returns.
  void before_step(int64_t number);
  std::optional<std::string> after_step(int64_t number);

  /// "trace_rank0.json".
  static std::string file_name(int rank);

 private:
  const config::StepRange steps_;
  const std::filesystem::path folder_;
  const int rank_;
  device::Device& device_;
  std::unique_ptr<exec::TracingDevice> tracing_;  // null: nothing is traced
  bool on_ = false;
};

}  // namespace trireme::train
