// The start of a run: who measures algorithms and what all ranks then take, and where time goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "cpu/inproc.h"
#include "cuda/algorithm_table.h"
#include "null/device.h"
#include "support/null_plan.h"
#include "support/rig.h"
#include "support/thread_coordinator.h"
#include "train/algorithms.h"
#include "train/start_times.h"

namespace trireme::train {
namespace {

using cuda::AlgorithmTable;
using cuda::AlgorithmWords;
using ops::OpKind;

/// Measures without a device: keys are kinds and shapes, choices are the rank that measured.
class MeasuringBackend final : public device::Backend {
 public:
  MeasuringBackend(int rank, std::unique_ptr<comm::Communicator> communicator)
      : rank_(rank), communicator_(std::move(communicator)) {}

  device::Device& device() override { return device_; }
  comm::Communicator& communicator() override { return *communicator_; }
  const ops::OpSizing& op_sizing() const override { return op_sizing_; }
  const comm::CommSizing& comm_sizing() const override { return comm_sizing_; }
  int64_t token_multiple() const override { return 1; }
  std::vector<std::pair<std::string, std::string>> facts() const override { return {}; }

  void tune(const ops::OpCall& call) override {
    if (call.kind != OpKind::linear) return;
    const std::string key = key_of(call);
    if (table_.find(key) && !std::ranges::count(invalid, key)) {
      table_.use(key);
      return;
    }
    measured.insert(key);
    AlgorithmWords words{};
    words[0] = static_cast<uint64_t>(rank_) + 1;
    table_.set(key, words);
  }
  std::string algorithms() const override { return table_.text_of_used(); }
  std::string use_algorithms(std::span<const std::string> texts) override {
    (void)table_.read(texts);
    return table_.text();
  }

  static std::string key_of(const ops::OpCall& call) {
    return fmt::format("{} x {} x {}", call.args[1].rows, call.args[2].rows, call.args[2].cols);
  }

  std::set<std::string> measured;
  std::vector<std::string> invalid;  // what is saved of these is of no use here

 private:
  int rank_;
  std::unique_ptr<comm::Communicator> communicator_;
  null::Device device_;
  null::OpSizing op_sizing_;
  null::CommSizing comm_sizing_;
  AlgorithmTable table_{"none, no GPU"};
};

struct Chosen {
  std::vector<std::set<std::string>> measured;  // by rank
  std::vector<std::string> texts;
};

constexpr ops::Extent kLargest{64, 4, 32};

/// Two stages of two data ranks: ranks 0 and 1, 2 and 3.
Chosen choose(const AlgorithmRequest& request, const std::vector<std::string>& invalid = {}) {
  constexpr int kRanks = 4;
  Chosen chosen{std::vector<std::set<std::string>>(kRanks), std::vector<std::string>(kRanks)};
  cpu::InProcessWorld world(kRanks);
  const auto errors = test::run_ranks(kRanks, [&](checkpoint::Coordinator& ranks) {
    testing::NullPlanOptions options;
    options.model = testing::tiny_model();
    options.config.pipeline_parallel_size = 2;
    options.config.gradient_accumulation_steps = 2;
    options.accumulations = {2};
    options.ranks = kRanks;
    options.rank = ranks.rank();
    options.capacity = kLargest;
    const auto at = static_cast<size_t>(ranks.rank());
    MeasuringBackend backend(ranks.rank(), world.join(ranks.rank()));
    backend.invalid = invalid;
    Session session(testing::null_plan(options), backend.device(), backend.communicator(), {});
    chosen.texts[at] = choose_algorithms(session, backend, ranks, request);
    chosen.measured[at] = backend.measured;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return chosen;
}

std::string head_product() {
  const model::ModelGraph model = testing::tiny_model();
  return fmt::format("{} x {} x {}", kLargest.tokens, model.config.vocab_size,
                     model.config.hidden_size);
}

std::string text_of(const std::string& key, uint64_t choice) {
  AlgorithmTable table("none, no GPU");
  AlgorithmWords words{};
  words[0] = choice;
  table.set(key, words);
  return table.text();
}

std::optional<uint64_t> choice_of(const std::string& text, const std::string& key) {
  AlgorithmTable table("none, no GPU");
  EXPECT_TRUE(table.read({&text, 1}));
  const auto words = table.find(key);
  if (!words) return std::nullopt;
  return (*words)[0];
}

TEST(Algorithms, TheFirstRankOfEachStageMeasures) {
  const Chosen chosen = choose({{kLargest}});
  EXPECT_FALSE(chosen.measured[0].empty());
  EXPECT_TRUE(chosen.measured[1].empty());
  EXPECT_TRUE(chosen.measured[3].empty());
  EXPECT_FALSE(chosen.measured[0].count(head_product()));
  EXPECT_TRUE(chosen.measured[2].count(head_product()));
  for (const std::string& text : chosen.texts) EXPECT_EQ(text, chosen.texts[0]);
  EXPECT_EQ(choice_of(chosen.texts[0], head_product()), 3u);
  // What both stages have measured is as the first of them chose.
  int shared = 0;
  for (const std::string& key : chosen.measured[0]) {
    shared += static_cast<int>(chosen.measured[2].count(key));
    EXPECT_EQ(choice_of(chosen.texts[3], key), 1u) << key;
  }
  EXPECT_GT(shared, 0);
}

TEST(Algorithms, AResumedRunMeasuresWhatIsNotSaved) {
  const Chosen first = choose({{kLargest}});
  std::string saved = first.texts[0];
  const std::string rare = "7 x 7 x 7";  // met before, and not by these micro-batches
  saved += text_of(rare, 99).substr(text_of(rare, 99).find('\n') + 1);
  const Chosen again = choose({{kLargest}, saved});
  for (const auto& measured : again.measured) EXPECT_TRUE(measured.empty());
  for (const std::string& text : again.texts) EXPECT_EQ(text, again.texts[0]);
  EXPECT_EQ(choice_of(again.texts[2], head_product()), 3u);
  EXPECT_EQ(choice_of(again.texts[2], rare), 99u);
}

/// The first rank holds the saved choice too, which it does not use.
TEST(Algorithms, WhatIsMeasuredAgainTakesThePlaceOfWhatIsSaved) {
  const Chosen again = choose({{kLargest}, text_of(head_product(), 77)}, {head_product()});
  EXPECT_TRUE(again.measured[2].count(head_product()));
  for (const std::string& text : again.texts) EXPECT_EQ(choice_of(text, head_product()), 3u);
}

TEST(Algorithms, WithoutMeasuringTheSavedOnesAreKept) {
  const Chosen chosen = choose({{kLargest}, text_of(head_product(), 77), false});
  for (const auto& measured : chosen.measured) EXPECT_TRUE(measured.empty());
  for (const std::string& text : chosen.texts) EXPECT_EQ(choice_of(text, head_product()), 77u);
}

TEST(StartTimes, PhasesAddUpAndSmallOnesAreTheRest) {
  using std::chrono::milliseconds;
  const StartTimes::Clock::time_point start{};
  StartTimes times(start);
  times.end("device", start + milliseconds(2100));
  times.end("plan", start + milliseconds(2130));
  times.end("weights", start + milliseconds(3000));
  times.end("device", start + milliseconds(3200));
  times.end("memory", start + milliseconds(3240));
  EXPECT_EQ(times.text(), "Started in 3.2 s: device 2.3, weights 0.9, the rest 0.1");
  EXPECT_EQ(StartTimes(start).text(), "Started in 0.0 s");
}

TEST(StartTimes, TheKernelKnowsWhenTheProcessBegan) {
  const auto now = StartTimes::Clock::now();
  const auto start = StartTimes::process_start();
  EXPECT_LE(start, now);
  EXPECT_LT(now - start, std::chrono::minutes(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto drift = StartTimes::process_start() - start;
  EXPECT_LT(std::chrono::abs(drift), std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace trireme::train
