// Packed samples are trained and evaluated as they are alone, on every layout.
#include <gtest/gtest.h>

#include <mutex>

#include "support/backends.h"
#include "support/expect_training.h"
#include "support/reference_run.h"
#include "support/rig.h"
#include "train/run_data.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

constexpr int64_t kMaxTokens = 24;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 43; ++i) lengths.push_back(1 + (i * 7) % 23);
    return random_dataset(lengths, 67, 3);
  }();
  return made;
}

const data::Dataset& evaluation_set() {
  static const data::Dataset made =
      random_dataset({8, 21, 2, 1, 17, 5, 24, 3, 9, 1, 1, 6, 4, 11, 2}, 67, 77);
  return made;
}

struct Layout {
  int ranks = 1;
  int stage = 0;
  int accumulation = 1;
  int tensor = 1;
  int stages = 1;
};

/// `rows` of a batch a step, over all ranks and micro-batches.
RigOptions options_of(const Layout& layout, int64_t rows, bool packing) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .heads = 6, .head_dim = 8, .tied = true});
  options.dataset = &dataset();
  options.ranks = layout.ranks;
  options.gradients = true;
  options.config.packing = packing;
  options.config.max_seq_length = kMaxTokens;
  options.config.optim = config::Optimizer::sgd;
  options.config.learning_rate = 0.05;
  options.config.lr_scheduler_type = config::Scheduler::constant;
  options.config.max_steps = 8;
  options.config.tensor_parallel_size = layout.tensor;
  options.config.pipeline_parallel_size = layout.stages;
  options.config.gradient_accumulation_steps = layout.accumulation;
  const int data_ranks = layout.ranks / (layout.tensor * layout.stages);
  options.config.per_device_train_batch_size = rows / (data_ranks * layout.accumulation);
  options.config.zero.stage = layout.stage;
  options.config.debug_poison = true;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

class Packing : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

/// All samples are one step, as packs or one by one.
TEST_P(Packing, GivesTheStepOfItsSamples) {
  const auto packs = train::packs_of(options_of({}, 24, true).config, dataset(), true);
  ASSERT_GT(packs.size(), 12);
  ASSERT_LE(packs.size(), 24);
  static const RigResult alone = train(options_of({}, dataset().size(), false));
  expect_same_training(train(options_of(GetParam(), 24, true)), alone);
}

/// Several steps an epoch, in the order of the run.
TEST_P(Packing, IsTheSameOnEveryLayout) {
  static const RigResult single = train(options_of({}, 8, true));
  expect_same_training(train(options_of(GetParam(), 8, true)), single);
}

TEST_P(Packing, LeavesTheEvaluationAsItIs) {
  const auto sums = [&](bool packing) {
    RigOptions options = options_of(GetParam(), 8, true);
    options.steps = 1;
    options.evaluation = &evaluation_set();
    options.config.eval_packing = packing;
    std::vector<std::vector<ops::Extent>> extents;
    for (int rank = 0; rank < options.ranks; ++rank) {
      extents.push_back(evaluation_extents(options, rank));
    }
    std::mutex mutex;
    train::EvalSums found;
    options.before_step = [&](train::Session& session, int rank, int64_t) {
      const auto mine = session.evaluate(extents[static_cast<size_t>(rank)]);
      const std::lock_guard lock(mutex);
      found = mine;  // of every rank the same
    };
    train(options);
    return found;
  };
  const train::EvalSums packed = sums(true), alone = sums(false);
  EXPECT_GT(packed.tokens, 0);
  EXPECT_EQ(packed.tokens, alone.tokens);
  EXPECT_NEAR(packed.loss, alone.loss, 1e-6 * alone.loss);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Packing,
                         ::testing::Values(Layout{}, Layout{1, 0, 2}, Layout{2, 0}, Layout{2, 3},
                                           Layout{4, 2, 2}, Layout{2, 0, 1, 2},
                                           Layout{2, 0, 4, 1, 2}),
                         [](const auto& test) {
                           const Layout& at = test.param;
                           return fmt::format("ranks{}_zero{}_accumulation{}_tp{}_pp{}", at.ranks,
                                              at.stage, at.accumulation, at.tensor, at.stages);
                         });

TEST(PackedRun, IsThatOfThePlainLoop) {
  const RigOptions options = options_of({}, 8, true);
  const RigResult result = train(options);
  const ReferenceRun reference = train_in_double(options);
  EXPECT_LT(relative_difference(result.gradients, reference.gradients), 1e-5);
  ASSERT_EQ(result.steps.size(), reference.steps.size());
  for (size_t s = 0; s < reference.steps.size(); ++s) {
    EXPECT_EQ(train::value(result.steps[s], ops::Control::trained_tokens),
              reference.steps[s].tokens);
    EXPECT_NEAR(train::value(result.steps[s], ops::Control::loss), reference.steps[s].loss, 1e-5);
  }
}

}  // namespace
}  // namespace trireme::testing
