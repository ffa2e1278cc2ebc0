// The engine against a plain training loop in double, and accumulation in fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "support/backends.h"
#include "support/odd_models.h"
#include "support/reference_run.h"
#include "support/rig.h"

namespace trireme::testing {
namespace {

using ops::Control;

const data::Dataset& dataset() {
  static const data::Dataset made =
      random_dataset({9, 4, 17, 1, 12, 6, 23, 8, 3, 14, 7, 11}, 67, 6);
  return made;
}

struct Case {
  int ranks;
  int stage;
  bool bf16;
};

class PlainLoop : public ::testing::TestWithParam<Case> {};

/// Whatever a step leaves behind in a gradient buffer would show in the norms of the next ones.
TEST_P(PlainLoop, StepsAreThoseOfALoop) {
  const Case& test = GetParam();
  if (test.ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  RigOptions options;
  options.model = tiny_model({.layers = 2, .tied = true});
  options.dataset = &dataset();
  options.ranks = test.ranks;
  options.gradients = true;
  options.config.learning_rate = 0.002;
  options.config.weight_decay = 0.1;
  options.config.max_grad_norm = 0.5;
  options.config.num_train_epochs = 3;
  options.config.warmup_steps = 2;
  options.config.per_device_train_batch_size = 6 / test.ranks;
  options.config.gradient_accumulation_steps = 2;
  options.config.zero.stage = test.stage;
  options.config.bf16 = test.bf16;
  options.source = [] { return std::make_unique<RoughSource>(2); };
  const RigResult result = train(options);
  const ReferenceRun reference = train_in_double(options);

  // bf16 keeps 8 bits: activations and weights are off by 2^-9 each.
  const double tolerance = test.bf16 ? 0.02 : 1e-5;
  EXPECT_LT(relative_difference(result.gradients, reference.gradients), test.bf16 ? 0.05 : 2e-5);
  ASSERT_EQ(result.steps.size(), reference.steps.size());
  ASSERT_GE(result.steps.size(), 3u);
  for (size_t s = 0; s < result.steps.size(); ++s) {
    const ReferenceStep& expected = reference.steps[s];
    const auto& now = result.steps[s];
    SCOPED_TRACE("step " + std::to_string(s));
    EXPECT_NEAR(train::value(now, Control::loss), expected.loss, tolerance * expected.loss);
    EXPECT_NEAR(train::value(now, Control::grad_norm), expected.grad_norm,
                tolerance * expected.grad_norm);
    EXPECT_NEAR(train::value(now, Control::clip_coef), expected.clip_coef,
                tolerance * expected.clip_coef);
    EXPECT_EQ(train::value(now, Control::trained_tokens), expected.tokens);
    EXPECT_DOUBLE_EQ(train::value(now, Control::learning_rate), expected.learning_rate);
    EXPECT_LE(train::value(now, Control::clip_coef) * train::value(now, Control::grad_norm),
              options.config.max_grad_norm);
  }
  // Adam divides by the root of the second moment: near-zero gradients may turn a whole step.
  const double most = test.bf16 ? 0.02 : 1e-3;
  EXPECT_LT(relative_difference(result.masters, reference.masters), most);
}

INSTANTIATE_TEST_SUITE_P(Loop, PlainLoop,
                         ::testing::Values(Case{1, 0, false}, Case{1, 0, true}, Case{2, 0, false},
                                           Case{2, 0, true}, Case{3, 1, true}, Case{3, 2, false},
                                           Case{3, 3, true}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "_stage" +
                                  std::to_string(test.param.stage) +
                                  (test.param.bf16 ? "_bf16" : "");
                         });

// Accumulation -------------------------------------------------------------------------------

/// One sample, over and over.
RigOptions repeated(int ranks, int stage, int accumulation, const data::Dataset& same) {
  RigOptions options;
  options.model = tiny_model({.layers = 1});
  options.dataset = &same;
  options.ranks = ranks;
  options.gradients = true;
  options.final_state = false;
  options.steps = 1;
  options.config.bf16 = true;
  options.config.max_steps = 1;
  options.config.per_device_train_batch_size = 1;
  options.config.gradient_accumulation_steps = accumulation;
  options.config.zero.stage = stage;
  options.source = [] { return std::make_unique<RoughSource>(2); };
  return options;
}

data::Dataset same_samples(int count) {
  const std::vector<int32_t> ids = {5, 9, 33, 2, 61, 17, 5, 28};
  const std::vector<std::vector<int32_t>> all(static_cast<size_t>(count), ids);
  return data::Dataset(all, all);
}

class Accumulation : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  void SetUp() override {
    if (GetParam().first > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

constexpr int kMicroBatches = 256;

/// The mean of 256 equal gradients is that gradient: bf16 sums would stall at 256 addends.
TEST_P(Accumulation, KeepsSmallGradients) {
  const auto [ranks, stage] = GetParam();
  const data::Dataset one = same_samples(ranks);
  const data::Dataset many = same_samples(ranks * kMicroBatches);
  const RigResult once = train(repeated(ranks, stage, 1, one));
  const RigResult often = train(repeated(ranks, stage, kMicroBatches, many));
  ASSERT_EQ(often.gradients.size(), once.gradients.size());
  for (const auto& [name, expected] : once.gradients) {
    const auto& found = often.gradients.at(name);
    for (size_t i = 0; i < expected.size(); ++i) {
      // 256 additions, each rounded to 24 bits.
      ASSERT_NEAR(found[i], expected[i], std::abs(expected[i]) * 256 * std::exp2(-24) + 1e-12)
          << name << " " << i;
    }
  }
}

/// An addend that bf16 cannot even hold: the two tokens of each micro-batch give the row of their
/// id 1 and 2^-9. Sums in fp32 are exact.
TEST_P(Accumulation, AddsWhatBf16CannotHold) {
  if (on_cuda()) GTEST_SKIP() << "writes into buffers of the CPU";
  const auto [ranks, stage] = GetParam();
  const std::vector<std::vector<int32_t>> twins(static_cast<size_t>(ranks * kMicroBatches), {7, 7});
  const data::Dataset many(twins, twins);
  RigOptions options = repeated(ranks, stage, kMicroBatches, many);
  options.after_op = [](int, int64_t, const ops::OpCall& call) {
    // The last of these writes the gradient of the hidden states that the embedding gets.
    if (call.kind != ops::OpKind::rms_norm_grad) return;
    const TensorView& dx = call.args[1];
    std::fill_n(dx.as<uint16_t>(), dx.size(), uint16_t{0});
    std::fill_n(dx.as<uint16_t>(), dx.cols, bf16_from_f32(1.0f));
    std::fill_n(dx.as<uint16_t>() + dx.stride, dx.cols, bf16_from_f32(1.0f / 512));
  };
  const RigResult result = train(options);
  EXPECT_EQ(train::value(result.steps[0], Control::trained_tokens), ranks * kMicroBatches);
  const auto& table = result.gradients.at("model.embed_tokens.weight");
  const int64_t hidden = options.model.config.hidden_size;
  for (int64_t i = 0; i < std::ssize(table); ++i) {
    ASSERT_EQ(table[static_cast<size_t>(i)], i / hidden == 7 ? 1.0f + 1.0f / 512 : 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Accumulation,
                         ::testing::Values(std::pair(1, 0), std::pair(2, 0), std::pair(2, 2),
                                           std::pair(2, 3)),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.first) + "_stage" +
                                  std::to_string(test.param.second);
                         });

}  // namespace
}  // namespace trireme::testing
