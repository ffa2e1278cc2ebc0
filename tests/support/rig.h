// Trains tiny models on in-process ranks, for tests: the product's own plan, executor and device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "cpu/device.h"
#include "data/dataset.h"
#include "data/step_plan.h"
#include "model/graph.h"
#include "train/session.h"

namespace trireme::testing {

using Tensors = std::map<std::string, std::vector<float>>;  // by parameter name, whole tensors

struct RigOptions {
  config::RunConfig config;
  model::ModelGraph model;
  const data::Dataset* dataset = nullptr;
  int ranks = 1;
  int num_threads = 1;      // of each rank's operations
  int64_t steps = 0;        // 0: all of the run
  bool gradients = false;   // collect the gradients of the first step
  bool final_state = true;  // collect masters and moments at the end
  /// Weights to start from; one per rank, made on the rank's thread.
  std::function<std::unique_ptr<train::StateSource>()> source;
  cpu::DeviceOptions device;
  /// Called on every rank before a step is enqueued (evaluate, measure, ...).
  std::function<void(train::Session&, int rank, int64_t step)> before_step;
  /// Called on every rank when the host knows what a step decided.
  std::function<void(train::Session&, int rank, int64_t step, const train::ControlValues&)>
      after_step;
  /// Called on a rank's compute thread after each operation of `step`, to break things.
  std::function<void(int rank, int64_t step, const ops::OpCall& call)> after_op;
  /// Micro-batches that are empty, whatever the data say.
  std::function<bool(int data_rank, int64_t step, int64_t micro_batch)> empty;
  /// What the session sees of the rank's device.
  std::function<std::unique_ptr<device::Device>(int rank, device::Device& device)> wrap;
  /// The host waits for a step when the next one is enqueued, as a run does; else at once.
  bool runs_ahead = false;
  int64_t first_step = 0;                     // the source's state is that of this step
  const data::Dataset* evaluation = nullptr;  // before_step may evaluate; batches of two samples
};

struct RigResult {
  std::vector<train::ControlValues> steps;  // rank 0's; every rank's are checked to be equal
  Tensors gradients;                        // of step 0, divided by its trained tokens
  Tensors masters, exp_avg, exp_avg_sq;
  Tensors exported;                // weights as export_weights gives them
  train::ControlValues control{};  // as a checkpoint would keep it
  plan::ArenaBytes planned{};
  std::array<int64_t, device::kNumSpaces> allocated{};
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

/// Which samples each rank sees at each step.
data::StepPlan step_plan(const RigOptions& options);

/// What a rank evaluates in before_step.
std::vector<ops::Extent> evaluation_extents(const RigOptions& options, int rank);

/// Runs the whole training; rethrows the first error of any rank.
RigResult train(const RigOptions& options);

/// Runs `body(rank)` on `ranks` threads and rethrows the first error.
void on_ranks(int ranks, const std::function<void(int rank)>& body);

/// A tiny model of a family with random weights.
struct TinyModel {
  model::Family family = model::Family::qwen2;
  int64_t hidden = 32, layers = 2, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 67;
  bool tied = false;
  int64_t window = 0;
};
model::ModelGraph tiny_model(const TinyModel& spec = {});

/// Samples of random tokens with the given lengths; every fifth label is not trained.
data::Dataset random_dataset(const std::vector<int64_t>& lengths, int64_t vocab, uint64_t seed);

/// Largest |a - b| / max |b| over all tensors; infinity when the names differ.
double relative_difference(const Tensors& a, const Tensors& b);

}  // namespace trireme::testing
