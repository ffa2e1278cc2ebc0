// What must not change a single bit: recomputation, overlap, delays, slots, prefetch, tiles,
// threads, poisoned memory, and where a micro-batch's gradient is reduced from.
#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/expect_bits.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::Recompute;

const data::Dataset& dataset() {
  static const data::Dataset made = random_dataset(
      {5, 19, 1, 30, 12, 7, 22, 3, 16, 16, 2, 9, 11, 28, 4, 6, 13, 21, 8, 10}, 67, 5);
  return made;
}

RigOptions base_options(int ranks, int stage, bool bf16) {
  RigOptions options;
  options.model = tiny_model({.layers = 5, .tied = true});
  options.dataset = &dataset();
  options.ranks = ranks;
  options.config.learning_rate = 0.01;
  options.config.weight_decay = 0.1;
  options.config.num_train_epochs = 2;
  options.config.per_device_train_batch_size = 2;
  options.config.gradient_accumulation_steps = 2;
  options.config.zero.stage = stage;
  options.config.bf16 = bf16;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  return options;
}

struct Base {
  int ranks;
  int stage;
  bool bf16;
};

class Identity : public ::testing::TestWithParam<Base> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
  RigOptions options() const {
    return base_options(GetParam().ranks, GetParam().stage, GetParam().bf16);
  }
};

TEST_P(Identity, RecomputationLevels) {
  const RigResult plain = train(options());
  for (Recompute level : {Recompute::norms, Recompute::activation, Recompute::ffn, Recompute::qkv,
                          Recompute::attention, Recompute::block}) {
    RigOptions changed = options();
    changed.config.recompute = {{level, -1}};
    expect_identical(train(changed), plain);
  }
  RigOptions mixed = options();
  mixed.config.recompute = {{Recompute::block, 1}, {Recompute::none, 1}, {Recompute::ffn, -1}};
  expect_identical(train(mixed), plain);
}

TEST_P(Identity, OverlapDelaysAndPoison) {
  const RigResult plain = train(options());
  RigOptions poisoned = options();
  poisoned.config.debug_poison = true;
  expect_identical(train(poisoned), plain);
  poisoned.device.delay_collectives = std::chrono::milliseconds(1);
  expect_identical(train(poisoned), plain);
  RigOptions serial = options();
  serial.config.zero.overlap_comm = false;
  serial.config.debug_poison = true;
  expect_identical(train(serial), plain);
}

TEST_P(Identity, SlotsPrefetchTilesAndReuse) {
  const RigResult plain = train(options());
  for (int64_t live : {int64_t{1}, int64_t{30000}, int64_t{1} << 40}) {
    for (int64_t prefetch : {int64_t{0}, int64_t{1}, int64_t{100000}}) {
      RigOptions changed = options();
      changed.config.debug_poison = true;
      changed.config.zero.max_live_parameters = live;
      changed.config.zero.prefetch_bucket_size = prefetch;
      changed.config.zero.sub_group_size = 777;
      changed.config.zero.reduce_bucket_size = prefetch == 1 ? 1000 : live;
      changed.config.zero.max_reuse_distance = prefetch == 0 ? 0 : int64_t{1} << 40;
      expect_identical(train(changed), plain);
    }
  }
}

TEST_P(Identity, Threads) {
  const RigResult plain = train(options());
  for (int threads : {2, 3}) {
    RigOptions changed = options();
    changed.num_threads = threads;
    expect_identical(train(changed), plain);
  }
}

TEST_P(Identity, PersistentParameters) {
  const RigResult plain = train(options());
  RigOptions changed = options();
  changed.config.zero.param_persistence_threshold = 100;
  changed.config.debug_poison = true;
  const RigResult result = train(changed);
  // Other groups, hence another order of the norm's sum: weights agree to rounding.
  EXPECT_LT(relative_difference(result.masters, plain.masters), 1e-5);
}

TEST_P(Identity, ContinuesFromItsState) {
  const RigResult plain = train(options());
  RigOptions first = options();
  first.steps = 3;  // inside epoch 1 of 2
  const RigResult half = train(first);
  RigOptions second = options();
  second.first_step = 3;
  second.source = [&half] { return std::make_unique<ResultSource>(half); };
  RigResult rest = train(second);
  rest.steps.insert(rest.steps.begin(), half.steps.begin(), half.steps.end());
  expect_identical(rest, plain);
}

INSTANTIATE_TEST_SUITE_P(Bits, Identity,
                         ::testing::Values(Base{1, 0, false}, Base{2, 0, false}, Base{2, 1, true},
                                           Base{3, 2, false}, Base{2, 3, true}, Base{3, 3, false}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "_stage" +
                                  std::to_string(test.param.stage) +
                                  (test.param.bf16 ? "_bf16" : "");
                         });

TEST(Identity, StagesAtEqualReduction) {
  if (max_ranks() < 3) GTEST_SKIP() << "more ranks than GPUs";
  for (config::ReduceAt at : {config::ReduceAt::micro, config::ReduceAt::boundary}) {
    RigOptions options = base_options(3, 0, false);
    options.config.reduce_at = at;
    const RigResult plain = train(options);
    for (int stage = 1; stage <= 3; ++stage) {
      options.config.zero.stage = stage;
      expect_identical(train(options), plain);
    }
  }
}

}  // namespace
}  // namespace trireme::testing
