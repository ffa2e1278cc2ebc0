// Gradients that are no numbers, and steps that train nothing: no rank changes a bit, all count it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/backends.h"
#include "support/expect_bits.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using ops::Control;
using train::value;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 40; ++i) lengths.push_back(2 + (i * 7) % 19);
    return random_dataset(lengths, 67, 12);
  }();
  return made;
}

struct Case {
  int ranks;
  int stage;
  bool bf16;
  config::ReduceAt reduce_at = config::ReduceAt::automatic;
};

RigOptions options_of(const Case& test) {
  RigOptions options;
  options.model = tiny_model({.layers = 2, .tied = true});
  options.dataset = &dataset();
  options.ranks = test.ranks;
  options.config.learning_rate = 0.01;
  options.config.weight_decay = 0.1;
  options.config.warmup_steps = 4;
  options.config.max_steps = 10;
  options.config.per_device_train_batch_size = 1;
  options.config.gradient_accumulation_steps = 2;
  options.config.zero.stage = test.stage;
  options.config.reduce_at = test.reduce_at;
  options.config.bf16 = test.bf16;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

/// One element of one gradient, on the last rank, at these steps.
void inject(RigOptions& options, std::vector<int64_t> steps, float what) {
  options.after_op = [=, last = options.ranks - 1](int rank, int64_t step,
                                                   const ops::OpCall& call) {
    if (rank != last || call.kind != ops::OpKind::linear_weight_grad) return;
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) return;
    call.args[0].as<float>()[call.args[0].size() / 2] = what;
  };
}

class Skips : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (on_cuda()) GTEST_SKIP() << "writes into buffers of the CPU";
  }
};

TEST_P(Skips, ChangeNoBitOnAnyRank) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (float what : {kNan, std::numeric_limits<float>::infinity()}) {
    RigOptions options = options_of(GetParam());
    options.steps = 3;
    const RigResult before = train(options);
    options.steps = 4;
    inject(options, {3}, what);
    const RigResult after = train(options);  // the rig compares the control blocks of all ranks
    expect_equal_state(after, before);
    const auto& last = after.steps.at(3);
    EXPECT_FALSE(std::isfinite(value(last, Control::grad_norm)));
    EXPECT_TRUE(std::isfinite(value(last, Control::loss)));
    EXPECT_EQ(value(last, Control::skip), 1);
    EXPECT_EQ(value(last, Control::skipped_steps), 1);
    EXPECT_EQ(value(last, Control::consecutive_skips), 1);
    EXPECT_EQ(value(last, Control::global_step), 4);
    EXPECT_EQ(value(last, Control::updates), 3);
  }
}

TEST_P(Skips, LeaveTheScheduleWhereItWas) {
  RigOptions options = options_of(GetParam());
  inject(options, {3, 4, 5}, std::numeric_limits<float>::quiet_NaN());
  const RigResult result = train(options);
  const auto rate = [&](size_t s) { return value(result.steps.at(s), Control::learning_rate); };
  ASSERT_EQ(result.steps.size(), 10u);
  EXPECT_NE(rate(3), rate(2));
  for (size_t s : {4, 5, 6}) EXPECT_EQ(rate(s), rate(3));  // 6 is the first to use it
  EXPECT_NE(rate(7), rate(6));
  const std::vector<double> in_a_row = {0, 0, 0, 1, 2, 3, 0, 0, 0, 0};
  for (size_t s = 0; s < 10; ++s) {
    EXPECT_EQ(value(result.steps[s], Control::consecutive_skips), in_a_row[s]) << s;
    EXPECT_EQ(value(result.steps[s], Control::updates),
              static_cast<double>(s + 1) - value(result.steps[s], Control::skipped_steps));
  }
  EXPECT_EQ(value(result.steps[9], Control::skipped_steps), 3);
}

TEST_P(Skips, AStopAndAResumeChangeNothing) {
  RigOptions options = options_of(GetParam());
  inject(options, {3}, std::numeric_limits<float>::quiet_NaN());
  const RigResult unbroken = train(options);
  RigOptions first = options;
  first.steps = 5;
  const RigResult half = train(first);
  RigOptions second = options;
  second.first_step = 5;
  second.source = [&half] { return std::make_unique<ResultSource>(half); };
  RigResult rest = train(second);
  // A control block compares by its bits, and NaN has many.
  EXPECT_TRUE(std::isnan(value(half.steps.at(3), Control::grad_norm)));
  EXPECT_TRUE(std::isnan(value(unbroken.steps.at(3), Control::grad_norm)));
  rest.steps.insert(rest.steps.begin(), half.steps.begin(), half.steps.end());
  rest.steps[3] = unbroken.steps[3];
  expect_identical(rest, unbroken);
}

/// Labels that train nothing, on some ranks and then on all.
TEST_P(Skips, EmptyMicroBatchesCountAsWhatTheyAre) {
  RigOptions options = options_of(GetParam());
  options.steps = 3;
  const RigResult before = train(options);
  options.steps = 7;
  options.config.debug_poison = true;
  options.empty = [ranks = options.ranks](int rank, int64_t step, int64_t micro_batch) {
    if (step == 3) return true;              // nobody trains anything
    if (step == 4) return micro_batch == 0;  // the writer that sets is empty
    if (step == 5) return micro_batch == 1;
    return step == 6 && (rank > 0 || ranks == 1) && micro_batch == 0;  // one rank is busy
  };
  const RigResult result = train(options);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(value(result.steps[s], Control::loss), value(before.steps[s], Control::loss));
  }
  const auto& none = result.steps.at(3);
  EXPECT_TRUE(std::isnan(value(none, Control::loss)));
  EXPECT_EQ(value(none, Control::trained_tokens), 0);
  EXPECT_EQ(value(none, Control::skip), 1);
  EXPECT_EQ(value(none, Control::skipped_steps), 1);
  EXPECT_EQ(value(none, Control::consecutive_skips), 0);  // nothing is wrong with the gradient
  EXPECT_EQ(value(none, Control::updates), 3);
  EXPECT_EQ(value(none, Control::learning_rate), value(result.steps.at(4), Control::learning_rate));
  for (size_t s : {4, 5, 6}) {
    EXPECT_GT(value(result.steps[s], Control::trained_tokens), 0);
    EXPECT_TRUE(std::isfinite(value(result.steps[s], Control::grad_norm)));
    EXPECT_EQ(value(result.steps[s], Control::skip), 0);
  }
  for (const auto& [name, tensor] : result.masters) {
    for (float x : tensor) ASSERT_TRUE(std::isfinite(x)) << name;
  }
}

/// A step without any token leaves every bit, as one that is skipped does.
TEST_P(Skips, AnEmptyStepChangesNoBit) {
  RigOptions options = options_of(GetParam());
  options.steps = 3;
  const RigResult before = train(options);
  options.steps = 4;
  options.empty = [](int, int64_t step, int64_t) { return step == 3; };
  expect_equal_state(train(options), before);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Skips,
                         ::testing::Values(Case{1, 0, false}, Case{2, 0, false}, Case{2, 0, true},
                                           Case{3, 1, false}, Case{2, 1, true}, Case{2, 2, false},
                                           Case{3, 2, true},
                                           Case{2, 2, true, config::ReduceAt::boundary},
                                           Case{3, 3, false}, Case{2, 3, true},
                                           Case{2, 3, false, config::ReduceAt::boundary},
                                           Case{2, 0, false, config::ReduceAt::micro}),
                         [](const auto& test) {
                           std::string name = "ranks" + std::to_string(test.param.ranks) +
                                              "_stage" + std::to_string(test.param.stage) +
                                              (test.param.bf16 ? "_bf16" : "");
                           if (test.param.reduce_at == config::ReduceAt::boundary)
                             name += "_boundary";
                           if (test.param.reduce_at == config::ReduceAt::micro) name += "_micro";
                           return name;
                         });

/// Clipping: the norm is reported as it was before, and the product keeps the limit.
TEST(Clipping, KeepsTheLimit) {
  for (int stage = 0; stage <= 3; ++stage) {
    if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
    RigOptions options = options_of({2, stage, false});
    const RigResult free = [&] {
      options.config.max_grad_norm = 0;
      return train(options);
    }();
    options.config.max_grad_norm = value(free.steps[0], Control::grad_norm) / 3;
    const RigResult clipped = train(options);
    EXPECT_EQ(value(free.steps[0], Control::clip_coef), 1);
    EXPECT_EQ(value(clipped.steps[0], Control::grad_norm),
              value(free.steps[0], Control::grad_norm));
    EXPECT_NEAR(value(clipped.steps[0], Control::clip_coef), 1.0 / 3, 1e-5);
    for (const auto& step : clipped.steps) {
      EXPECT_LE(value(step, Control::clip_coef) * value(step, Control::grad_norm),
                options.config.max_grad_norm);
    }
  }
}

}  // namespace
}  // namespace trireme::testing
