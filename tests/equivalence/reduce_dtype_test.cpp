// Gradients that travel as bf16: each rank's contribution is rounded once and summed in fp32, with
// the same bits at every ZeRO stage, and what one data rank computes is never rounded.
#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/checkpoint_saver.h"
#include "support/expect_bits.h"
#include "support/rig.h"
#include "support/temp_folder.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::Precision;
using config::ReduceAt;

/// Samples of 4 trained tokens each, so that the number of a step's is a power of two, and
/// gradients divided by it tell the sums exactly.
const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<std::vector<int32_t>> rows;
    for (int row = 0; row < 64; ++row) {
      std::vector<int32_t>& ids = rows.emplace_back();
      for (int t = 0; t < 5; ++t) ids.push_back((row * 31 + t * t * 17 + row * t) % 67);
    }
    return data::Dataset(rows, rows);
  }();
  return made;
}

RigOptions options_of(int ranks, int stage, ReduceAt at, Precision reduce = Precision::bfloat16) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .heads = 6, .head_dim = 8, .tied = true});
  options.dataset = &dataset();
  options.ranks = ranks;
  options.gradients = true;
  options.config.learning_rate = 0.003;
  options.config.weight_decay = 0.1;
  options.config.max_steps = 4;
  options.config.gradient_accumulation_steps = 2;
  options.config.per_device_train_batch_size = 2;
  options.config.zero.stage = stage;
  options.config.reduce_at = at;
  options.config.reduce_dtype = reduce;
  options.config.debug_poison = true;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

/// A rounding errs by at most 1/256 of a contribution, and the largest of a tensor's elements need
/// not be much smaller than the largest contributions to it.
void expect_near_fp32(const RigResult& narrow, const RigResult& wide, int hops) {
  const double difference = relative_difference(narrow.gradients, wide.gradients);
  EXPECT_GT(difference, 1e-5);
  EXPECT_LT(difference, 0.01 * hops);
  for (size_t s = 0; s < wide.steps.size(); ++s) {
    const double loss = train::value(wide.steps[s], ops::Control::loss);
    EXPECT_NEAR(train::value(narrow.steps[s], ops::Control::loss), loss, 1e-3 * loss);
  }
  EXPECT_EQ(narrow.planned, narrow.allocated);
}

class ReduceDtype : public ::testing::TestWithParam<bool> {};  // bf16 weights

TEST_P(ReduceDtype, TheSameBitsAtEveryStage) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  for (const int64_t accumulation : {1, 2}) {
    for (const ReduceAt at : {ReduceAt::micro, ReduceAt::boundary}) {
      const auto run = [&](int stage, Precision reduce = Precision::bfloat16) {
        RigOptions options = options_of(std::min(3, max_ranks()), stage, at, reduce);
        options.config.bf16 = GetParam();
        options.config.gradient_accumulation_steps = accumulation;
        options.config.zero.overlap_comm = stage != 2;
        if (stage == 1) options.config.zero.reduce_bucket_size = 1000;
        return train(options);
      };
      const RigResult plain = run(0);
      for (int stage = 1; stage <= 3; ++stage) expect_identical(run(stage), plain);
      expect_near_fp32(plain, run(0, Precision::float32), 1);
    }
  }
}

/// Both hops of hybrid sharding round: in the group that shares a copy, then between the copies.
TEST_P(ReduceDtype, TheSameBitsAtEveryStageOfCopies) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  const int ranks = max_ranks() < 4 ? 2 : 4;
  for (int group = 1; group < ranks; group *= 2) {
    const auto run = [&](int stage, Precision reduce = Precision::bfloat16) {
      RigOptions options = options_of(ranks, stage, ReduceAt::micro, reduce);
      options.config.bf16 = GetParam();
      options.config.shard_group_size = group;
      return train(options);
    };
    const RigResult plain = run(1);
    for (int stage = 2; stage <= 3; ++stage) expect_identical(run(stage), plain);
    expect_near_fp32(plain, run(1, Precision::float32), group);
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, ReduceDtype, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "bf16" : "fp32"; });

/// Tensor ranks, ends of a pipeline and the norm sum in fp32.
TEST(ReduceDtype, OneDataRankRoundsNothing) {
  for (const bool cut : {false, true}) {
    const auto run = [&](Precision reduce) {
      RigOptions options = options_of(cut ? 4 : 1, 0, ReduceAt::automatic, reduce);
      options.config.tensor_parallel_size = options.config.pipeline_parallel_size = cut ? 2 : 1;
      return train(options);
    };
    if (cut && max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
    expect_identical(run(Precision::bfloat16), run(Precision::float32));
  }
}

/// Undivided sums of the first step, where only the micro-batches that `trains` says are not empty.
Tensors sums_of(RigOptions options, const std::function<bool(int rank, int64_t micro)>& trains) {
  options.steps = 1;
  options.empty = [&](int rank, int64_t, int64_t micro) { return !trains(rank, micro); };
  RigResult result = train(options);
  const auto tokens =
      static_cast<float>(train::value(result.steps[0], ops::Control::trained_tokens));
  for (auto& [name, tensor] : result.gradients) {
    for (float& x : tensor) x *= tokens;
  }
  return std::move(result.gradients);
}

Tensors rounded(Tensors tensors) {
  for (auto& [name, tensor] : tensors) {
    for (float& x : tensor) x = f32_from_bf16(bf16_from_f32(x));
  }
  return tensors;
}

Tensors sum(Tensors a, const Tensors& b) {
  for (auto& [name, tensor] : a) {
    const std::vector<float>& other = b.at(name);
    for (size_t i = 0; i < tensor.size(); ++i) tensor[i] += other[i];
  }
  return a;
}

TEST(ReduceDtype, RoundsWhatARankHasAccumulatedOnce) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  const auto all = [](int, int64_t) { return true; };
  {
    const RigOptions wide = options_of(2, 1, ReduceAt::boundary, Precision::float32);
    const auto of_rank = [&](int rank) {
      return rounded(sums_of(wide, [rank](int r, int64_t) { return r == rank; }));
    };
    const Tensors found = sums_of(options_of(2, 1, ReduceAt::boundary), all);
    EXPECT_EQ(relative_difference(found, sum(of_rank(0), of_rank(1))), 0);
  }
  const RigOptions wide = options_of(2, 2, ReduceAt::micro, Precision::float32);
  const auto of_micro_batch = [&](int64_t micro) {
    const auto of_rank = [&](int rank) {
      return rounded(sums_of(wide, [&](int r, int64_t m) { return r == rank && m == micro; }));
    };
    return sum(of_rank(0), of_rank(1));
  };
  const Tensors found = sums_of(options_of(2, 2, ReduceAt::micro), all);
  EXPECT_EQ(relative_difference(found, sum(of_micro_batch(0), of_micro_batch(1))), 0);
}

TEST(ReduceDtype, AResumeContinuesBitForBit) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  for (const int stage : {0, 3}) {
    const test::TempFolder temporary;
    RigOptions options = options_of(2, stage, ReduceAt::automatic);
    options.config.bf16 = true;
    const RigResult unbroken = train(options);
    CheckpointSaver saver(options, temporary.path(), 2);
    expect_identical(train(options), unbroken);
    options.after_step = nullptr;
    options.first_step = 2;
    options.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
    RigResult rest = train(options);
    rest.steps.insert(rest.steps.begin(), unbroken.steps.begin(), unbroken.steps.begin() + 2);
    expect_identical(rest, unbroken);
  }
}

}  // namespace
}  // namespace trireme::testing
