// Graphs that no family has, through plan, executor and session as they are: attention and MLP side
// by side, one weight used four times, frozen embeddings and blocks, a head that learns alone.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/backends.h"
#include "support/expect_bits.h"
#include "support/odd_models.h"
#include "support/reference_run.h"
#include "support/rig.h"

namespace trireme::testing {
namespace {

constexpr int kSamplesPerStep = 12;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 3 * kSamplesPerStep - 2; ++i) lengths.push_back(1 + (i * 5) % 17);
    return random_dataset(lengths, odd_config().vocab_size, 8);
  }();
  return made;
}

RigOptions options_of(const ParallelModel& spec, int ranks, int stage, int accumulation) {
  RigOptions options;
  options.model = parallel_model(spec);
  options.dataset = &dataset();
  options.ranks = ranks;
  options.gradients = true;
  options.config.optim = config::Optimizer::sgd;
  options.config.learning_rate = 0.05;
  options.config.lr_scheduler_type = config::Scheduler::constant;
  options.config.weight_decay = 0.02;
  options.config.max_steps = 5;
  options.config.gradient_accumulation_steps = accumulation;
  options.config.per_device_train_batch_size = kSamplesPerStep / (ranks * accumulation);
  options.config.zero.stage = stage;
  options.config.debug_poison = true;
  options.source = [] { return std::make_unique<RoughSource>(21); };
  return options;
}

struct Spec {
  std::string name;
  ParallelModel model;
};

std::vector<Spec> specs() {
  return {{"frozen_middle", {}},
          {"two_slots", {.two_slots = true}},
          {"all_trained", {.frozen_embedding = false, .frozen_middle = false}},
          {"mix_of_one_unit", {.frozen_embedding = false, .shared_mix = false, .two_slots = true}},
          {"head_alone", {.frozen_body = true}}};
}

class OddGraphs : public ::testing::TestWithParam<Spec> {};

/// The double reference itself: directional derivatives of the loss, one for each parameter.
TEST_P(OddGraphs, ReferenceGradientsAreTheDerivatives) {
  const model::ModelGraph model = parallel_model(GetParam().model);
  RoughSource source(21);
  const DoubleTensors weights = weights_of(model, source);
  const BatchFields batch = batch_of(dataset(), std::vector<int32_t>{3, 5}, 4);
  LossSums sums;
  add_micro_batch(model, weights, batch, true, sums);
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  for (const model::Parameter& parameter : model.parameters) {
    ASSERT_EQ(sums.gradients.contains(parameter.name), parameter.trainable) << parameter.name;
    if (!parameter.trainable) continue;
    constexpr double kStep = 1e-5;
    double expected = 0;
    DoubleTensors above = weights;
    DoubleTensors below = weights;
    for (size_t i = 0; i < sums.gradients.at(parameter.name).size(); ++i) {
      const double direction = normal(random);
      expected += direction * sums.gradients.at(parameter.name)[i];
      above.at(parameter.name)[i] += kStep * direction;
      below.at(parameter.name)[i] -= kStep * direction;
    }
    LossSums high;
    LossSums low;
    add_micro_batch(model, above, batch, false, high);
    add_micro_batch(model, below, batch, false, low);
    EXPECT_NEAR((high.loss - low.loss) / (2 * kStep), expected, 1e-5 * (1 + std::abs(expected)))
        << parameter.name;
  }
}

void expect_frozen_kept(const RigResult& result, const model::ModelGraph& model) {
  RoughSource source(21);
  const DoubleTensors weights = weights_of(model, source);
  for (const model::Parameter& parameter : model.parameters) {
    const auto& now = result.masters.at(parameter.name);
    const auto& before = weights.at(parameter.name);
    EXPECT_EQ(std::equal(now.begin(), now.end(), before.begin(), before.end()),
              !parameter.trainable)
        << parameter.name;
  }
  EXPECT_EQ(result.exported, result.masters);  // frozen tensors included
}

TEST_P(OddGraphs, EveryLayoutTrainsThem) {
  const RigOptions alone = options_of(GetParam().model, 1, 0, 1);
  const RigResult single = train(alone);
  const ReferenceRun reference = train_in_double(alone);
  EXPECT_LT(relative_difference(single.gradients, reference.gradients), 2e-5);
  EXPECT_LT(relative_difference(single.masters, reference.masters), 1e-5);
  for (size_t s = 0; s < reference.steps.size(); ++s) {
    EXPECT_NEAR(train::value(single.steps[s], ops::Control::loss), reference.steps[s].loss, 1e-5);
  }
  expect_frozen_kept(single, alone.model);
  for (int ranks : {2, 3}) {
    if (ranks > max_ranks()) continue;
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + " stage " + std::to_string(stage));
      const RigOptions options = options_of(GetParam().model, ranks, stage, 2);
      const RigResult result = train(options);
      EXPECT_LT(relative_difference(result.gradients, single.gradients), 1e-5);
      EXPECT_LT(relative_difference(result.masters, single.masters), 1e-5);
      EXPECT_EQ(result.planned, result.allocated);
      expect_frozen_kept(result, options.model);
    }
  }
}

TEST_P(OddGraphs, RecomputationChangesNoBit) {
  RigOptions options = options_of(GetParam().model, 1, 0, 2);
  const RigResult plain = train(options);
  for (auto level : {config::Recompute::norms, config::Recompute::ffn, config::Recompute::qkv,
                     config::Recompute::block}) {
    options.config.recompute = {{level, -1}};
    expect_identical(train(options), plain);
  }
}

/// Under bf16 a frozen tensor has no remainder: it is what bf16 holds of it, and stays that.
TEST_P(OddGraphs, FrozenTensorsStayUnderBf16) {
  RigOptions options = options_of(GetParam().model, 2, 3, 2);
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  options.config.bf16 = true;
  const RigResult result = train(options);
  const DoubleTensors rounded = rounded_to_bf16(weights_of(options.model, *options.source()));
  for (const model::Parameter& parameter : options.model.parameters) {
    if (parameter.trainable) continue;
    const auto& before = rounded.at(parameter.name);
    for (const Tensors* now : {&result.masters, &result.exported}) {
      const auto& after = now->at(parameter.name);
      EXPECT_TRUE(std::equal(after.begin(), after.end(), before.begin(), before.end()))
          << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OddGraphs, ::testing::ValuesIn(specs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::testing
