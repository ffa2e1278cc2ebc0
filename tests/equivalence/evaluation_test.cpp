// Evaluation: the same exact loss on any number of ranks, also where some have nothing left, and no
// trace of it in training.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "support/backends.h"
#include "support/expect_bits.h"
#include "support/recording_device.h"
#include "support/reference_run.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

const data::Dataset& dataset() {
  static const data::Dataset made =
      random_dataset({5, 19, 3, 30, 12, 7, 22, 3, 16, 16, 2, 9, 11, 28, 4, 6}, 67, 5);
  return made;
}

/// Nine samples in batches of two: five batches, dealt in turn, the last with one sample.
const data::Dataset& evaluation_set() {
  static const data::Dataset made = random_dataset({8, 31, 2, 1, 17, 5, 40, 3, 9}, 67, 77);
  return made;
}

RigOptions options_of(int ranks, int stage) {
  RigOptions options;
  options.model = tiny_model({.layers = 3, .tied = true});
  options.dataset = &dataset();
  options.evaluation = &evaluation_set();
  options.ranks = ranks;
  options.steps = 4;
  options.config.learning_rate = 0.01;
  options.config.max_steps = 4;
  options.config.per_device_train_batch_size = 1;
  options.config.gradient_accumulation_steps = 2;
  options.config.zero.stage = stage;
  options.config.debug_poison = true;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

/// Sums of every rank at each evaluation.
struct Evaluations {
  std::mutex mutex;
  std::map<int64_t, std::vector<train::EvalSums>> by_step;
};

void evaluate_before(RigOptions& options, std::vector<int64_t> steps, Evaluations& found) {
  std::vector<std::vector<ops::Extent>> extents;
  for (int rank = 0; rank < options.ranks; ++rank) {
    extents.push_back(evaluation_extents(options, rank));
  }
  options.before_step = [=, &found](train::Session& session, int rank, int64_t step) {
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) return;
    session.flush();
    const train::EvalSums sums = session.evaluate(extents[static_cast<size_t>(rank)]);
    const std::lock_guard lock(found.mutex);
    found.by_step[step].push_back(sums);
  };
}

using Calls = std::vector<std::string>;

/// The ends of programs take turns in a few events, and evaluation has programs of its own.
Calls without_turns(Calls calls) {
  const std::string record = "compute: record ";
  for (std::string& call : calls) {
    if (call.starts_with("host waits")) call = "host waits";
    const bool end = call.starts_with(record) &&
                     std::stoi(call.substr(record.size())) <= exec::Executor::kTicketsKept;
    if (end) call = record + "the end";
  }
  return calls;
}

struct Layout {
  int ranks;
  int stage;
};

class Evaluation : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

TEST_P(Evaluation, IsExactWhereverItRuns) {
  RigOptions options = options_of(GetParam().ranks, GetParam().stage);
  options.steps = 1;
  Evaluations found;
  evaluate_before(options, {0}, found);
  train(options);

  const DoubleTensors weights = weights_of(options.model, *options.source());
  LossSums expected;
  std::vector<int32_t> all(static_cast<size_t>(evaluation_set().size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  add_micro_batch(options.model, weights, batch_of(evaluation_set(), all), false, expected);
  ASSERT_EQ(found.by_step.at(0).size(), static_cast<size_t>(options.ranks));
  for (const train::EvalSums& sums : found.by_step.at(0)) {
    EXPECT_EQ(sums.tokens, expected.tokens);
    EXPECT_NEAR(sums.loss / sums.tokens, expected.loss / expected.tokens, 1e-6);
    EXPECT_EQ(sums.loss, found.by_step.at(0).front().loss);
  }
}

TEST_P(Evaluation, LeavesNoTraceInTraining) {
  RigOptions options = options_of(GetParam().ranks, GetParam().stage);
  const RigResult plain = train(options);
  Evaluations found;
  evaluate_before(options, {0, 2, 3}, found);
  const RigResult evaluated = train(options);
  ASSERT_EQ(found.by_step.size(), 3u);
  EXPECT_NE(found.by_step[2].front().loss, found.by_step[3].front().loss);
  // The pending update is applied before, not within, the next step: nothing else differs.
  ASSERT_EQ(evaluated.steps.size(), plain.steps.size());
  for (size_t s = 0; s < plain.steps.size(); ++s) {
    EXPECT_EQ(evaluated.steps[s], plain.steps[s]) << "step " << s;
  }
  expect_equal_state(evaluated, plain);
}

/// What the host does for a step is the same after an evaluation: no other launch, no other wait.
TEST_P(Evaluation, LeavesTheNextStepsLaunchesAlone) {
  const auto record = [&](std::vector<int64_t> evaluations) {
    RigOptions options = options_of(GetParam().ranks, GetParam().stage);
    Evaluations found;
    evaluate_before(options, std::move(evaluations), found);
    std::vector<RecordingDevice*> devices(static_cast<size_t>(options.ranks));
    options.wrap = [&](int rank, device::Device& device) {
      auto made = std::make_unique<RecordingDevice>(device);
      devices[static_cast<size_t>(rank)] = made.get();
      return made;
    };
    std::vector<std::vector<Calls>> steps(static_cast<size_t>(options.ranks));
    const auto before = options.before_step;
    options.before_step = [&, before](train::Session& session, int rank, int64_t step) {
      before(session, rank, step);
      devices[static_cast<size_t>(rank)]->take();
    };
    options.after_step = [&](train::Session&, int rank, int64_t, const train::ControlValues&) {
      steps[static_cast<size_t>(rank)].push_back(
          without_turns(devices[static_cast<size_t>(rank)]->take()));
    };
    train(options);
    return steps;
  };
  const auto plain = record({});
  const auto evaluated = record({1, 2});
  for (size_t rank = 0; rank < plain.size(); ++rank) {
    ASSERT_EQ(plain[rank].size(), 4u);
    for (size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(plain[rank][s], evaluated[rank][s]) << "rank " << rank << " step " << s;
      const Calls& calls = evaluated[rank][s];
      EXPECT_GT(calls.size(), 20u);
      EXPECT_EQ(std::count(calls.begin(), calls.end(), "host waits"), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Evaluation,
                         ::testing::Values(Layout{1, 0}, Layout{2, 0}, Layout{2, 3}, Layout{3, 1},
                                           Layout{3, 3}, Layout{4, 2}, Layout{4, 3}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "_stage" +
                                  std::to_string(test.param.stage);
                         });

}  // namespace
}  // namespace trireme::testing
