// Real pipelines whose work is naps: a step takes as long as the schedule's formula says.
#include <gtest/gtest.h>

#include <chrono>

#include "plan/timeline.h"
#include "support/backends.h"
#include "support/forwarding_device.h"
#include "support/naps.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::PipelineSchedule;
using Clock = std::chrono::steady_clock;

constexpr int64_t kFfn = 40;  // of the down projection alone

/// Each block naps once in forward, once for its input gradient, once for its weight gradients.
class NappingDevice final : public ForwardingDevice {
 public:
  NappingDevice(device::Device& device, int64_t length)
      : ForwardingDevice(device), length_(length) {}
  void launch(device::StreamKind stream, const ops::OpCall& call) override {
    const bool down_projection =
        call.kind == ops::OpKind::linear_weight_grad && call.args[2].cols == kFfn;
    if (call.kind == ops::OpKind::attention || call.kind == ops::OpKind::attention_input_grad ||
        down_projection) {
      nap(device_, stream, length_);
    }
  }
  void launch(device::StreamKind stream, const comm::CommCall& call) override {
    device_.launch(stream, call);
  }

 private:
  int64_t length_;
};

/// The part of the second step in which a stage, on average, does not nap.
double measured_bubble(const plan::ScheduleRequest& request, int64_t nap_length) {
  constexpr int64_t kSteps = 2;
  const data::Dataset dataset =
      random_dataset(std::vector<int64_t>(kSteps * request.micro_batches, 8), 67, 5);
  RigOptions options;
  options.model = tiny_model({.layers = request.virtual_stages(), .ffn = kFfn});
  options.dataset = &dataset;
  options.ranks = request.stages;
  options.steps = kSteps;
  options.final_state = false;
  config::RunConfig& c = options.config;
  c.max_steps = kSteps;
  c.per_device_train_batch_size = 1;
  c.gradient_accumulation_steps = request.micro_batches;
  c.pipeline_parallel_size = request.stages;
  c.pipeline_schedule = request.kind;
  c.virtual_pipeline_size = request.chunks;
  c.pipeline_layers.assign(static_cast<size_t>(request.virtual_stages()), 1);
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  NapWatch watch;
  options.device.observer = &watch;
  options.wrap = [&](int, device::Device& device) {
    return std::make_unique<NappingDevice>(device, nap_length);
  };
  Clock::time_point begin;
  double before = 0;
  double bubble = 1;
  options.after_step = [&](train::Session&, int rank, int64_t step, const train::ControlValues&) {
    if (rank != 0) return;
    if (step + 1 == kSteps) {
      const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
      bubble = 1 - (watch.computation - before) / request.stages / wall;
    }
    before = watch.computation;
    begin = Clock::now();
  };
  train(options);
  return bubble;
}

TEST(PipelineTiming, BubblesOfFourStagesAreThoseOfTheFormulas) {
  if (on_cuda()) GTEST_SKIP() << "naps on the CPU's streams";
  struct Case {
    plan::ScheduleRequest request;
    int64_t nap_length;  // ms
  };
  for (const auto& [request, nap_length] : {Case{{PipelineSchedule::one_f_one_b, 4, 1, 8}, 16},
                                            Case{{PipelineSchedule::interleaved, 4, 2, 8}, 8},
                                            Case{{PipelineSchedule::zero_bubble, 4, 1, 8}, 16}}) {
    const double expected = plan::bubble_share(request, {1, 1, 1});
    double found = 1;
    // A machine that stalls for a while may spoil a measurement, never make a good one.
    for (int attempt = 0; attempt < 3 && std::abs(found - expected) > 0.05; ++attempt) {
      found = measured_bubble(request, nap_length);
      std::printf("%s: bubble %.1f %%, by the formula %.1f %%\n", name_of(request).c_str(),
                  100 * found, 100 * expected);
    }
    EXPECT_NEAR(found, expected, 0.05) << name_of(request);
  }
}

}  // namespace
}  // namespace trireme::testing
