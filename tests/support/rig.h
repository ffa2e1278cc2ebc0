// Trains tiny models on in-process ranks, for tests: the product's own plan, executor and device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/device.h"
#include "train/tiny.h"
#include "train/trial.h"

namespace trireme::testing {

using train::on_ranks;
using train::random_dataset;
using train::relative_difference;
using train::step_plan;
using train::Tensors;
using train::tiny_model;
using train::TinyModel;
using RigResult = train::TrialResult;

struct RigOptions : train::TrialOptions {
  int num_threads = 1;  // of each rank's operations
  cpu::DeviceOptions device;
  /// Called on a rank's compute thread after each operation of `step`, to break things.
  std::function<void(int rank, int64_t step, const ops::OpCall& call)> after_op;
  /// What the session sees of the rank's device.
  std::function<std::unique_ptr<device::Device>(int rank, device::Device& device)> wrap;
};

/// Continues from the state that a run ended with.
class ResultSource final : public train::StateSource {
 public:
  explicit ResultSource(const RigResult& result) : result_(result) {}
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) override;
  void read_control(std::span<double> control) override;

 private:
  const RigResult& result_;
};

/// What a rank evaluates in before_step.
std::vector<ops::Extent> evaluation_extents(const RigOptions& options, int rank);

/// Runs the whole training; rethrows the first error of any rank.
RigResult train(const RigOptions& options);

}  // namespace trireme::testing
