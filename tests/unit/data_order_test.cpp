// Which sample goes where: Hugging Face's order, and that nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "config/run_config.h"
#include "data/batch_builder.h"
#include "data/step_plan.h"
#include "support/properties.h"

namespace trireme::data {
namespace {

using Samples = std::vector<int32_t>;

Samples list(std::span<const int32_t> samples) { return {samples.begin(), samples.end()}; }

TEST(TorchPermutationTest, EqualsTorch) {
  Samples order(10);
  torch_permutation(42, order);  // torch.manual_seed(42); torch.randperm(10)
  EXPECT_EQ(order, (Samples{2, 6, 1, 8, 4, 5, 0, 9, 3, 7}));
  torch_permutation(42, std::span(order).first(1));
  EXPECT_EQ(order[0], 0);
  torch_permutation(42, {});
}

TEST(EpochOrderTest, DealsAsHuggingFaceTrainer) {
  const Json golden = read_json(TRIREME_SOURCE_DIR "/tests/golden/data/order.json");
  int num_runs = 0;
  for (const Json& run : golden.at("runs")) {
    StepPlanOptions options;
    options.num_samples = run.at("samples");
    options.num_ranks = run.at("world");
    options.batch_size = run.at("batch");
    options.seed = run.at("data_seed").is_null() ? run.at("seed") : run.at("data_seed");
    options.shuffle = true;
    options.even_batches = true;
    EpochOrder order(options);
    order.move_to(run.at("epoch"));
    const StepPlan plan(options);
    const auto expected = run.at("micro_batches_by_rank").get<std::vector<std::vector<Samples>>>();
    ASSERT_EQ(std::ssize(expected), options.num_ranks);
    for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
      const auto& batches = expected[static_cast<size_t>(rank)];
      ASSERT_EQ(std::ssize(batches), plan.micro_batches_per_epoch());
      for (int64_t i = 0; i < std::ssize(batches); ++i) {
        EXPECT_EQ(list(order.batch(rank, i)), batches[static_cast<size_t>(i)]);
      }
    }
    // Without even_batches the same samples, but none twice.
    options.even_batches = false;
    EpochOrder exact(options);
    exact.move_to(run.at("epoch"));
    for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
      for (int64_t i = 0; i < plan.micro_batches_per_epoch(); ++i) {
        const auto all = list(order.batch(rank, i));
        const auto some = list(exact.batch(rank, i));
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
      }
    }
    ++num_runs;
  }
  EXPECT_EQ(num_runs, 72);
}

RC_GTEST_PROP(EpochOrderTest, EverySampleIsDealtOnce, ()) {
  StepPlanOptions options;
  options.num_samples = *rc::gen::inRange(1, 200);
  options.batch_size = *rc::gen::inRange(1, 9);
  options.num_ranks = *rc::gen::inRange(1, 9);
  options.accumulation_steps = *rc::gen::inRange(1, 6);
  options.num_epochs = 2;
  options.seed = *rc::gen::inRange(0, 1000);
  options.shuffle = *rc::gen::arbitrary<bool>();
  const StepPlan plan(options);
  EpochOrder order(options);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    Samples seen;
    for (int64_t s = 0; s < plan.steps_per_epoch(); ++s) {
      const auto step = plan.at(epoch * plan.steps_per_epoch() + s);
      RC_ASSERT(step.epoch == epoch);
      RC_ASSERT(step.num_micro_batches >= 1);
      RC_ASSERT(step.num_micro_batches <= options.accumulation_steps);
      order.move_to(step.epoch);
      size_t in_step = 0;
      for (int64_t i = 0; i < step.num_micro_batches; ++i) {
        for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
          const auto batch = order.batch(rank, step.first_micro_batch + i);
          RC_ASSERT(std::ssize(batch) <= options.batch_size);
          seen.insert(seen.end(), batch.begin(), batch.end());
          in_step += batch.size();
        }
      }
      RC_ASSERT(order.batches(step.first_micro_batch, step.num_micro_batches).size() == in_step);
    }
    if (!options.shuffle) RC_ASSERT(std::is_sorted(seen.begin(), seen.end()));
    std::sort(seen.begin(), seen.end());
    Samples all(static_cast<size_t>(options.num_samples));
    std::iota(all.begin(), all.end(), 0);
    RC_ASSERT(seen == all);
  }
}

TEST(StepPlanTest, CountsStepsAsHuggingFace) {
  StepPlanOptions options;
  options.num_samples = 101;
  options.batch_size = 2;
  options.num_ranks = 2;
  options.accumulation_steps = 4;
  options.num_epochs = 3;
  StepPlan plan(options);  // 51 batches, 26 a rank, 7 steps of which the last has 2
  EXPECT_EQ(plan.micro_batches_per_epoch(), 26);
  EXPECT_EQ(plan.steps_per_epoch(), 7);
  EXPECT_EQ(plan.total_steps(), 21);
  EXPECT_EQ(plan.at(5).num_micro_batches, 4);
  EXPECT_EQ(plan.at(6).num_micro_batches, 2);
  EXPECT_EQ(plan.at(6).first_micro_batch, 24);
  EXPECT_EQ(plan.at(7).epoch, 1);
  EXPECT_EQ(plan.at(7).first_micro_batch, 0);
  EXPECT_DOUBLE_EQ(plan.epoch_after(0), 4.0 / 26);
  EXPECT_DOUBLE_EQ(plan.epoch_after(6), 1.0);
  EXPECT_DOUBLE_EQ(plan.epoch_after(20), 3.0);

  options.num_epochs = 0.5;
  EXPECT_EQ(StepPlan(options).total_steps(), 4);  // ceil(0.5 * 7)
  EXPECT_EQ(StepPlan(options).num_epochs(), 1);
  options.num_epochs = 1.1;
  EXPECT_EQ(StepPlan(options).total_steps(), 8);
  options.max_steps = 15;
  EXPECT_EQ(StepPlan(options).total_steps(), 15);
  EXPECT_EQ(StepPlan(options).num_epochs(), 3);
  EXPECT_EQ(StepPlan(options).at(14).epoch, 2);

  options = {};
  options.num_samples = 3;
  options.batch_size = 8;
  options.num_ranks = 4;
  options.accumulation_steps = 16;
  const StepPlan tiny(options);
  EXPECT_EQ(tiny.total_steps(), 1);
  EXPECT_EQ(tiny.at(0).num_micro_batches, 1);
  EpochOrder order(options);
  EXPECT_EQ(order.batch(0, 0).size(), 3u);
  EXPECT_EQ(order.batch(3, 0).size(), 0u);
}

/// What a plan that cannot be made says.
std::string refusal(const StepPlanOptions& options) {
  try {
    const StepPlan plan(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(StepPlanTest, MoreUpdatesThanARunMayHaveAreRefused) {
  StepPlanOptions options;
  options.num_samples = 7;
  options.num_epochs = 1e18;
  EXPECT_EQ(refusal(options),
            "num_train_epochs = 1e+18: these are more than 100000000 updates, 7 an epoch; give "
            "fewer, or larger batches");
  options.num_epochs = 14285714;
  EXPECT_EQ(StepPlan(options).total_steps(), 99'999'998);
  options.num_epochs = 14285715;
  EXPECT_NE(refusal(options), "");
  options.max_steps = config::kMaxUpdates;
  EXPECT_EQ(StepPlan(options).total_steps(), config::kMaxUpdates);
}

TEST(StepPlanTest, EvaluationTakesEachSampleOnceInOrder) {
  const StepPlan plan(evaluation_plan(7, 2, 2));
  EXPECT_EQ(plan.total_steps(), 2);
  EpochOrder order(plan.options());
  EXPECT_EQ(list(order.batch(0, 0)), (Samples{0, 1}));
  EXPECT_EQ(list(order.batch(1, 0)), (Samples{2, 3}));
  EXPECT_EQ(list(order.batch(0, 1)), (Samples{4, 5}));
  EXPECT_EQ(list(order.batch(1, 1)), (Samples{6}));
  const StepPlan uneven(evaluation_plan(5, 2, 2));
  EpochOrder rest(uneven.options());
  EXPECT_EQ(uneven.total_steps(), 2);
  EXPECT_EQ(list(rest.batch(0, 1)), (Samples{4}));
  EXPECT_EQ(list(rest.batch(1, 1)), Samples{});
}

// The definition, without any cleverness.
ops::Extent slow_capacity(std::span<const int32_t> lengths, const StepPlan& plan, int64_t pad) {
  ops::Extent result;
  EpochOrder order(plan.options());
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    const auto at = plan.at(step);
    order.move_to(at.epoch);
    for (int64_t i = 0; i < at.num_micro_batches; ++i) {
      for (int64_t rank = 0; rank < plan.options().num_ranks; ++rank) {
        const auto batch = order.batch(rank, at.first_micro_batch + i);
        int64_t tokens = 0;
        for (const int32_t sample : batch) {
          tokens += lengths[static_cast<size_t>(sample)];
          result.longest = std::max<int64_t>(result.longest, lengths[static_cast<size_t>(sample)]);
        }
        result.tokens = std::max(result.tokens, (tokens + pad - 1) / pad * pad);
        result.sequences = std::max(result.sequences, std::ssize(batch));
      }
    }
  }
  return result;
}

TEST(CapacityTest, EqualsTheLargestMicroBatch) {
  const Json file = read_json(TRIREME_SOURCE_DIR "/tests/golden/data/lengths.json");
  const auto lengths = file.at("lengths").get<Samples>();
  ASSERT_EQ(lengths.size(), 2000u);
  StepPlanOptions options;
  options.num_samples = std::ssize(lengths);
  options.batch_size = 4;
  options.num_ranks = 3;
  options.accumulation_steps = 5;
  options.num_epochs = 2.3;
  options.seed = 42;
  for (const bool shuffle : {true, false}) {
    for (const bool even : {true, false}) {
      options.shuffle = shuffle;
      options.even_batches = even;
      const StepPlan plan(options);
      const auto capacity = capacity_of(lengths, Packs(options.num_samples), plan, 16);
      EXPECT_EQ(capacity, slow_capacity(lengths, plan, 16));
      EXPECT_EQ(capacity.tokens % 16, 0);
    }
  }
}

RC_GTEST_PROP(CapacityTest, EqualsTheDefinitionOnSmallSets, ()) {
  StepPlanOptions options;
  options.num_samples = *rc::gen::inRange(1, 30);
  options.batch_size = *rc::gen::inRange(1, 6);
  options.num_ranks = *rc::gen::inRange(1, 5);
  options.accumulation_steps = *rc::gen::inRange(1, 4);
  options.max_steps = *rc::gen::inRange(1, 20);
  options.shuffle = *rc::gen::arbitrary<bool>();
  options.even_batches = *rc::gen::arbitrary<bool>();
  const auto lengths = *rc::gen::container<Samples>(static_cast<size_t>(options.num_samples),
                                                    rc::gen::inRange(1, 6));
  const StepPlan plan(options);
  const Packs alone(options.num_samples);
  RC_ASSERT(capacity_of(lengths, alone, plan, 4) == slow_capacity(lengths, plan, 4));
}

}  // namespace
}  // namespace trireme::data
