// A state saved by four ranks continues on any other number of ranks and any other stage: in memory
// and through checkpoint files; what is exported is what was trained.
#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "model/hf_weights.h"
#include "support/backends.h"
#include "support/checkpoint_saver.h"
#include "support/expect_bits.h"
#include "support/rig.h"
#include "support/temp_folder.h"
#include "train/run_files.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using ops::Control;
using train::value;

constexpr int64_t kSaved = 3;
constexpr int64_t kSteps = 6;
constexpr int kSamplesPerStep = 24;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 2 * kSamplesPerStep + 7; ++i) lengths.push_back(2 + (i * 7) % 19);
    return random_dataset(lengths, 67, 12);
  }();
  return made;
}

struct Layout {
  int ranks;
  int stage;
  int accumulation = 1;
};

RigOptions options_of(const Layout& layout, bool bf16) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .heads = 6, .head_dim = 8});
  for (model::Parameter& parameter : options.model.parameters) {  // one block does not learn
    if (parameter.name.find("layers.1.") != std::string::npos) parameter.trainable = false;
  }
  options.dataset = &dataset();
  options.ranks = layout.ranks;
  options.config.learning_rate = 0.003;
  options.config.weight_decay = 0.1;
  options.config.warmup_steps = 2;
  options.config.max_steps = kSteps;
  options.config.gradient_accumulation_steps = layout.accumulation;
  options.config.per_device_train_batch_size =
      kSamplesPerStep / (layout.ranks * layout.accumulation);
  options.config.zero.stage = layout.stage;
  options.config.bf16 = bf16;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

void expect_same_losses(const RigResult& rest, const RigResult& unbroken, double tolerance) {
  ASSERT_EQ(rest.steps.size(), static_cast<size_t>(kSteps - kSaved));
  for (size_t s = 0; s < rest.steps.size(); ++s) {
    const auto& expected = unbroken.steps.at(s + kSaved);
    // Adam turns rounding into steps: only the first loss sees the same weights.
    const double allowed = s == 0 ? tolerance : 100 * tolerance;
    EXPECT_NEAR(value(rest.steps[s], Control::loss), value(expected, Control::loss),
                allowed * value(expected, Control::loss))
        << s;
    for (Control field : {Control::global_step, Control::updates, Control::learning_rate,
                          Control::trained_tokens, Control::bias1, Control::bias2}) {
      EXPECT_EQ(value(rest.steps[s], field), value(expected, field)) << ops::index(field);
    }
  }
}

class Reshard : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (std::max(4, GetParam().ranks) > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

TEST_P(Reshard, MemoryContinues) {
  RigOptions options = options_of({4, 3}, false);
  const RigResult unbroken = train(options);
  options.steps = kSaved;
  const RigResult half = train(options);
  EXPECT_EQ(half.exported, half.masters);

  RigOptions other = options_of(GetParam(), false);
  other.first_step = kSaved;
  other.source = [&half] { return std::make_unique<ResultSource>(half); };
  expect_same_losses(train(other), unbroken, 1e-6);
  // Nothing trained: what was loaded comes back, bit for bit, moments and frozen tensors too.
  other.steps = kSaved;
  expect_equal_state(train(other), half);
}

TEST_P(Reshard, FilesContinue) {
  for (bool bf16 : {false, true}) {
    const test::TempFolder temporary;
    RigOptions options = options_of({4, 3}, bf16);
    CheckpointSaver saver(options, temporary.path(), kSaved);
    const RigResult unbroken = train(options);
    options.after_step = nullptr;
    options.steps = kSaved;
    const RigResult half = train(options);

    RigOptions other = options_of(GetParam(), bf16);
    other.first_step = kSaved;
    other.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
    const RigResult rest = train(other);
    expect_same_losses(rest, unbroken, bf16 ? 1e-4 : 1e-6);
    other.steps = kSaved;
    expect_equal_state(train(other), half);
  }
}

/// The same layout continues with the same bits: saving itself changes nothing either.
TEST(Reshard, TheSameLayoutContinuesBitForBit) {
  if (max_ranks() < 3) GTEST_SKIP() << "more ranks than GPUs";
  for (int stage = 0; stage <= 3; ++stage) {
    const test::TempFolder temporary;
    RigOptions options = options_of({3, stage, 2}, stage % 2 == 1);
    const RigResult unbroken = train(options);
    CheckpointSaver saver(options, temporary.path(), kSaved);
    expect_identical(train(options), unbroken);
    options.after_step = nullptr;
    options.first_step = kSaved;
    options.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
    RigResult rest = train(options);
    rest.steps.insert(rest.steps.begin(), unbroken.steps.begin(), unbroken.steps.begin() + kSaved);
    expect_identical(rest, unbroken);
  }
}

/// Every tensor of the model is in the exported folder, with its shape and its values.
TEST(Reshard, TheExportedFolderIsTheModel) {
  if (max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
  for (bool bf16 : {false, true}) {
    const test::TempFolder temporary;
    RigOptions options = options_of({4, 3}, bf16);
    options.steps = kSaved;
    CheckpointSaver saver(options, temporary.path(), kSaved);
    const RigResult result = train(options);
    model::HfWeights weights(saver.folder());
    ASSERT_EQ(weights.tensors().size(), options.model.parameters.size());
    for (const model::Parameter& parameter : options.model.parameters) {
      const model::TensorInfo* info = weights.find(parameter.name);
      ASSERT_NE(info, nullptr) << parameter.name;
      EXPECT_EQ(info->shape, parameter.shape) << parameter.name;
      std::vector<float> whole(static_cast<size_t>(parameter.size()));
      weights.read_box(parameter.name, mesh::whole(parameter.shape), whole.data());
      EXPECT_EQ(whole, result.exported.at(parameter.name)) << parameter.name;
      if (bf16) continue;
      EXPECT_EQ(whole, result.masters.at(parameter.name)) << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From4RanksZero3, Reshard,
                         ::testing::Values(Layout{1, 0}, Layout{2, 1, 2}, Layout{3, 2},
                                           Layout{8, 3}, Layout{4, 0}, Layout{8, 0, 3}),
                         [](const auto& test) {
                           return "to_ranks" + std::to_string(test.param.ranks) + "_stage" +
                                  std::to_string(test.param.stage);
                         });

}  // namespace
}  // namespace trireme::testing
