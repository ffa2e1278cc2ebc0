// Every data-parallel layout computes the step of the single process.
#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/expect_training.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

struct Layout {
  int ranks;
  int stage;
  int accumulation;
  bool tied;
  config::ReduceAt reduce_at = config::ReduceAt::automatic;
  int shard_group = 0;
};

/// Twelve ragged samples a step for 1, 2, 3 and 4 ranks and one or two micro-batches.
constexpr int kSamplesPerStep = 24;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < kSamplesPerStep * 2 - 5; ++i) lengths.push_back(1 + (i * 7) % 23);
    return random_dataset(lengths, 67, 3);
  }();
  return made;
}

RigOptions options_of(const Layout& layout) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .heads = 6, .head_dim = 8, .tied = layout.tied});
  options.dataset = &dataset();
  options.ranks = layout.ranks;
  options.gradients = true;
  options.config.optim = config::Optimizer::sgd;
  options.config.learning_rate = 0.05;
  options.config.lr_scheduler_type = config::Scheduler::constant;
  options.config.weight_decay = 0.01;
  options.config.max_grad_norm = 1.0;
  options.config.train_sampling_strategy = config::Sampling::random;
  options.config.max_steps = 20;
  options.config.gradient_accumulation_steps = layout.accumulation;
  options.config.per_device_train_batch_size =
      kSamplesPerStep / (layout.ranks * layout.accumulation);
  options.config.zero.stage = layout.stage;
  options.config.reduce_at = layout.reduce_at;
  options.config.shard_group_size = layout.shard_group;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

const RigResult& single_process(bool tied) {
  static std::map<bool, RigResult> known;
  auto at = known.find(tied);
  if (at == known.end()) at = known.emplace(tied, train(options_of({1, 0, 1, tied}))).first;
  return at->second;
}

class Layouts : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

TEST_P(Layouts, ComputeTheStepOfTheSingleProcess) {
  expect_same_training(train(options_of(GetParam())), single_process(GetParam().tied));
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (bool tied : {false, true}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int accumulation : {1, 2}) {
        for (int stage = 0; stage <= 3; ++stage) {
          if (ranks == 1 && stage == 1) continue;  // one rank has nothing to shard: once is enough
          all.push_back({ranks, stage, accumulation, tied});
        }
      }
    }
  }
  for (int stage = 1; stage <= 3; ++stage) {  // hybrid sharding: two copies, and four
    for (int group : {1, 2}) {
      all.push_back({4, stage, 2, true, config::ReduceAt::automatic, group});
      all.push_back({4, stage, 2, false, config::ReduceAt::micro, group});
    }
  }
  for (int stage = 0; stage <= 3; ++stage) {
    for (config::ReduceAt at : {config::ReduceAt::micro, config::ReduceAt::boundary}) {
      all.push_back({3, stage, 2, true, at});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Zero, Layouts, ::testing::ValuesIn(layouts()), [](const auto& test) {
  const Layout& layout = test.param;
  std::string name = "ranks" + std::to_string(layout.ranks) + "_stage" +
                     std::to_string(layout.stage) + "_accumulation" +
                     std::to_string(layout.accumulation) + (layout.tied ? "_tied" : "");
  if (layout.shard_group > 0) name += "_group" + std::to_string(layout.shard_group);
  if (layout.reduce_at == config::ReduceAt::micro) name += "_micro";
  if (layout.reduce_at == config::ReduceAt::boundary) name += "_boundary";
  return name;
});

}  // namespace
}  // namespace trireme::testing
