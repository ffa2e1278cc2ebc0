// Masters and moments kept as bf16: the same bits at every ZeRO stage and after a resume, the
// memory that was planned, and losses beside those of fp32 state.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/reader.h"
#include "support/backends.h"
#include "support/checkpoint_saver.h"
#include "support/expect_bits.h"
#include "support/rig.h"
#include "support/temp_folder.h"
#include "train/run_files.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::Optimizer;
using config::Precision;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 55; ++i) lengths.push_back(2 + (i * 7) % 19);
    return random_dataset(lengths, 67, 12);
  }();
  return made;
}

struct Types {
  Precision master;
  Precision moment;
  Optimizer optimizer = Optimizer::adamw;
};
constexpr Types kNarrow = {Precision::bfloat16, Precision::bfloat16};
constexpr Types kWide = {Precision::float32, Precision::float32};
constexpr Types kAll[] = {kNarrow,
                          {Precision::bfloat16, Precision::float32},
                          {Precision::float32, Precision::bfloat16},
                          {Precision::bfloat16, Precision::float32, Optimizer::sgd}};

RigOptions options_of(int ranks, int stage, const Types& types) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .heads = 6, .head_dim = 8, .tied = true});
  for (model::Parameter& parameter : options.model.parameters) {  // one block does not learn
    if (parameter.name.find("layers.1.") != std::string::npos) parameter.trainable = false;
  }
  options.dataset = &dataset();
  options.ranks = ranks;
  options.config.bf16 = true;
  options.config.master_dtype = types.master;
  options.config.moment_dtype = types.moment;
  options.config.optim = types.optimizer;
  options.config.learning_rate = types.optimizer == Optimizer::sgd ? 0.05 : 0.003;
  options.config.weight_decay = 0.1;
  options.config.max_steps = 6;
  options.config.gradient_accumulation_steps = 2;
  options.config.per_device_train_batch_size = 2;
  options.config.zero.stage = stage;
  options.config.reduce_at = config::ReduceAt::micro;
  options.config.debug_poison = true;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

/// Every element is one that bf16 holds.
void expect_narrow(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    for (const float x : tensor) ASSERT_EQ(f32_from_bf16(bf16_from_f32(x)), x) << name;
  }
}

TEST(StateTypes, TheSameBitsAtEveryStage) {
  if (max_ranks() < 3) GTEST_SKIP() << "more ranks than GPUs";
  for (const Types& types : kAll) {
    const RigResult plain = train(options_of(3, 0, types));
    EXPECT_EQ(plain.planned, plain.allocated);
    if (types.master == Precision::bfloat16) {
      expect_narrow(plain.masters);
      EXPECT_EQ(plain.exported, plain.masters);
    }
    if (types.moment == Precision::bfloat16) {
      expect_narrow(plain.exp_avg);
      expect_narrow(plain.exp_avg_sq);
    }
    for (int stage = 1; stage <= 3; ++stage) {
      RigOptions options = options_of(3, stage, types);
      options.config.zero.sub_group_size = 777;
      const RigResult result = train(options);
      expect_identical(result, plain);
      EXPECT_EQ(result.planned, result.allocated);
    }
  }
}

/// The copies of hybrid sharding sum in another order than one copy, but alike at every stage.
TEST(StateTypes, CopiesStayCopies) {
  if (max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
  RigOptions options = options_of(4, 1, kNarrow);
  options.config.shard_group_size = 2;
  const RigResult plain = train(options);
  for (int stage = 2; stage <= 3; ++stage) {
    options.config.zero.stage = stage;
    expect_identical(train(options), plain);
  }
}

TEST(StateTypes, AResumeContinuesBitForBit) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  for (const Types& types : kAll) {
    for (const int stage : {0, 3}) {
      const test::TempFolder temporary;
      RigOptions options = options_of(2, stage, types);
      const RigResult unbroken = train(options);
      CheckpointSaver saver(options, temporary.path(), 3);
      expect_identical(train(options), unbroken);
      options.after_step = nullptr;
      options.first_step = 3;
      options.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
      RigResult rest = train(options);
      rest.steps.insert(rest.steps.begin(), unbroken.steps.begin(), unbroken.steps.begin() + 3);
      expect_identical(rest, unbroken);
    }
  }
}

Tensors rounded(Tensors tensors) {
  for (auto& [name, tensor] : tensors) {
    for (float& x : tensor) x = f32_from_bf16(split_master(x).value);
  }
  return tensors;
}

/// A checkpoint holds what is kept, and loads into a run that keeps another type.
TEST(StateTypes, CheckpointsOfEitherTypeLoad) {
  for (const bool narrow : {false, true}) {
    const test::TempFolder temporary;
    RigOptions options = options_of(1, 0, narrow ? kNarrow : kWide);
    options.steps = 3;
    CheckpointSaver saver(options, temporary.path(), 3);
    const RigResult saved = train(options);
    const checkpoint::CheckpointReader reader(saver.folder());
    ASSERT_EQ(reader.manifest().planes.size(), 3u);
    for (const checkpoint::PlaneEntry& plane : reader.manifest().planes) {
      EXPECT_EQ(plane.dtype, narrow ? DType::bf16 : DType::f32) << plane.name;
    }

    RigOptions other = options_of(1, 0, narrow ? kWide : kNarrow);
    other.first_step = 3;
    other.steps = 3;  // nothing is trained
    other.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
    const RigResult loaded = train(other);
    expect_equal_bits(loaded.masters, narrow ? saved.masters : rounded(saved.masters));
    expect_equal_bits(loaded.exp_avg, narrow ? saved.exp_avg : rounded(saved.exp_avg));
    expect_equal_bits(loaded.exp_avg_sq, narrow ? saved.exp_avg_sq : rounded(saved.exp_avg_sq));
  }
}

/// Thirty steps that memorise a little data. Rounding a weight w errs by at most one bf16 step,
/// |w| / 128, and by its nature averages out: the loss follows that of fp32 state to a few per cent
/// of what was learned. Round-to-nearest would lose most updates: at this rate a step of a weight
/// is a tenth of half a bf16 step.
TEST(StateTypes, TheLossFollowsThatOfFp32State) {
  const auto losses = [](const Types& types) {
    RigOptions options = options_of(1, 0, types);
    for (model::Parameter& parameter : options.model.parameters) parameter.trainable = true;
    options.config.lr_scheduler_type = config::Scheduler::constant;
    options.config.learning_rate = 1e-3;
    options.config.per_device_train_batch_size = 8;
    options.config.num_train_epochs = 30;
    options.config.max_steps = 90;
    std::vector<double> found;
    for (const auto& step : train(options).steps) {
      found.push_back(train::value(step, ops::Control::loss));
    }
    return found;
  };
  const std::vector<double> wide = losses(kWide);
  const double learned = wide.front() - wide.back();
  EXPECT_GT(learned, 0.5);
  for (const Types& types : {kAll[0], kAll[1], kAll[2]}) {
    const std::vector<double> narrow = losses(types);
    double worst = 0;
    for (size_t s = 0; s < wide.size(); ++s) {
      worst = std::max(worst, std::abs(narrow[s] - wide[s]));
    }
    EXPECT_LT(worst, 0.05 * learned)
        << wide.front() << " to " << wide.back() << ", and to " << narrow.back();
  }
}

}  // namespace
}  // namespace trireme::testing
