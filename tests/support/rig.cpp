#include "support/rig.h"

#include <atomic>

#include "cpu/backend.h"
#include "support/backends.h"
#include "support/wrapped_backend.h"

namespace trireme::testing {

namespace {

/// Tells after_op of what the CPU's device has run.
class AfterOp final : public cpu::ExecutionObserver {
 public:
  AfterOp(const RigOptions& o, int rank, const std::atomic<int64_t>& step)
      : o_(o), rank_(rank), step_(step) {}

  void executed(device::StreamKind, int64_t, const cpu::StreamItem& item, Time, Time) override {
    if (const auto* call = std::get_if<ops::OpCall>(&item)) o_.after_op(rank_, step_, *call);
  }

 private:
  const RigOptions& o_;
  int rank_;
  const std::atomic<int64_t>& step_;
};

}  // namespace

void ResultSource::read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
                        float* out) {
  const Tensors& tensors = plane == plan::Plane::master    ? result_.masters
                           : plane == plan::Plane::exp_avg ? result_.exp_avg
                                                           : result_.exp_avg_sq;
  const std::vector<float>& whole = tensors.at(parameter.name);
  for (const mesh::Run& run : mesh::copy_runs(mesh::whole(parameter.shape), box)) {
    std::copy_n(whole.begin() + run.from, run.count, out + run.to);
  }
}

void ResultSource::read_control(std::span<double> control) {
  std::copy(result_.control.begin(), result_.control.end(), control.begin());
}

std::vector<ops::Extent> evaluation_extents(const RigOptions& options, int rank) {
  const int64_t multiple = on_cuda() ? cuda_maker().token_multiple() : cpu::kTokenMultiple;
  return train::evaluation_extents(options, rank, multiple);
}

RigResult train(const RigOptions& options) {
  check(!options.after_op || !on_cuda(), "after_op needs the CPU");
  std::vector<std::atomic<int64_t>> steps(static_cast<size_t>(options.ranks));
  train::TrialOptions trial_options = options;
  trial_options.before_step = [&](train::Session& session, int rank, int64_t step) {
    steps[static_cast<size_t>(rank)] = step;
    if (options.before_step) options.before_step(session, rank, step);
  };
  train::Trial trial(trial_options);
  TestWorld world(options.ranks);
  on_ranks(options.ranks, [&](int rank) {
    AfterOp after_op(options, rank, steps[static_cast<size_t>(rank)]);
    cpu::DeviceOptions device = options.device;
    if (options.after_op) device.observer = &after_op;
    const auto backend = world.open(rank, options.num_threads, device);
    if (!options.wrap) {
      trial.run_rank(rank, *backend);
      return;
    }
    WrappedBackend wrapped(*backend, options.wrap(rank, backend->device()));
    trial.run_rank(rank, wrapped);
  });
  return trial.take_result();
}

}  // namespace trireme::testing
