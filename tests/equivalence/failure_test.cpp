// A rank that fails, while its peers read its memory or wait for it, ends the run with words.
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "support/backends.h"
#include "support/forwarding_device.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

const data::Dataset& dataset() {
  static const data::Dataset made = random_dataset({5, 19, 1, 30, 12, 7, 22, 3, 16}, 67, 5);
  return made;
}

RigOptions options_of(int ranks, int stage) {
  RigOptions options;
  options.model = tiny_model({.layers = 3});
  options.dataset = &dataset();
  options.ranks = ranks;
  options.config.max_steps = 3;
  options.config.per_device_train_batch_size = 1;
  options.config.zero.stage = stage;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  return options;
}

std::string error_of(const RigOptions& options) {
  try {
    train(options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Every error names what happened: the disk, or the rank that was lost to it.
void expect_words(const std::string& words) {
  const bool known = words.find("the disk is gone") != std::string::npos;
  EXPECT_TRUE(known) << words;
}

/// Fails at the n-th read of a run, on whichever rank that is.
class FailingSource final : public train::StateSource {
 public:
  FailingSource(std::unique_ptr<train::StateSource> source, std::atomic<int>& reads_left)
      : source_(std::move(source)), reads_left_(reads_left) {}
  bool only_weights() const override { return source_->only_weights(); }
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) override {
    if (--reads_left_ == 0) throw DataError("the disk is gone");
    source_->read(parameter, plane, box, out);
  }
  void read_control(std::span<double> control) override { source_->read_control(control); }

 private:
  std::unique_ptr<train::StateSource> source_;
  std::atomic<int>& reads_left_;
};

TEST(Failures, DuringALoad) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU's communicator";
  for (int reads = 1; reads < 20; ++reads) {  // of masters alone
    RigOptions options = options_of(2 + reads % 3, reads % 4);
    std::atomic<int> reads_left = reads;
    options.source = [&, inner = options.source] {
      return std::make_unique<FailingSource>(inner(), reads_left);
    };
    expect_words(error_of(options));
  }
}

/// A launch that fails when it runs.
class FailingDevice final : public ForwardingDevice {
 public:
  FailingDevice(device::Device& device, int launches) : ForwardingDevice(device), left_(launches) {}
  void launch(device::StreamKind stream, const ops::OpCall& call) override {
    if (--left_ == 0) {
      const auto fail = [](void*, int64_t) { throw DeviceError("the disk is gone"); };
      device_.call(stream, {fail, nullptr, 0});
    }
    device_.launch(stream, call);
  }
  using ForwardingDevice::launch;

 private:
  int left_;
};

TEST(Failures, DuringSteps) {
  if (on_cuda()) GTEST_SKIP() << "of the CPU's communicator";
  for (int i = 0; i < 20; ++i) {
    RigOptions options = options_of(2 + i % 3, i % 4);
    options.wrap = [&](int rank, device::Device& device) {
      return std::make_unique<FailingDevice>(device, rank == 1 ? 1 + 15 * i : -1);
    };
    expect_words(error_of(options));
  }
}

}  // namespace
}  // namespace trireme::testing
