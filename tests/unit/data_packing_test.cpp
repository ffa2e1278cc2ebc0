// Packing: which samples lie together, and what a rank is fed then.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/math.h"
#include "data/batch_source.h"
#include "data/packing.h"
#include "support/properties.h"

namespace trireme::data {
namespace {

using Ids = std::vector<int32_t>;
using Lists = std::vector<Ids>;

Lists lists(const Packs& packs) {
  Lists all;
  for (int32_t pack = 0; pack < packs.size(); ++pack) {
    const auto samples = packs.samples(pack);
    all.emplace_back(samples.begin(), samples.end());
  }
  return all;
}

Lists packed(const Ids& lengths, int64_t max_tokens) {
  return lists(Packs::best_fit(lengths, max_tokens));
}

TEST(PacksTest, WithoutPackingEachSampleIsAlone) {
  const Packs packs(3);
  EXPECT_EQ(lists(packs), (Lists{{0}, {1}, {2}}));
  EXPECT_EQ(packs.num_samples(), 3);
}

TEST(PacksTest, TakeWhatFitsBest) {
  // 7, 6, 5 and 4 open packs with room for 1, 2, 3 and 4; the 3 fills the third, a 2 the second,
  // the other 2 goes to the fourth, and the 1 fills the first.
  EXPECT_EQ(packed({3, 7, 5, 2, 2, 4, 1, 6}, 8), (Lists{{1, 6}, {7, 3}, {2, 0}, {5, 4}}));
  EXPECT_EQ(packed({4, 2, 3, 1}, 4), (Lists{{0}, {2, 3}, {1}}));  // of TRL's documentation
  EXPECT_EQ(packed({5}, 5), (Lists{{0}}));
  EXPECT_EQ(packed({1, 1, 1}, 100), (Lists{{0, 1, 2}}));
  EXPECT_EQ(packed({}, 4), Lists{});
}

TEST(PacksTest, OfEqualRoomTheFirstThatCameToIt) {
  EXPECT_EQ(packed({6, 6, 2, 2, 2}, 8), (Lists{{0, 2}, {1, 3}, {4}}));
  // The second pack has room for 1 before the first has.
  EXPECT_EQ(packed({8, 6, 5, 3, 1, 1}, 12), (Lists{{0, 3, 5}, {1, 2, 4}}));
}

TEST(PacksTest, RefuseWhatFitsInNone) {
  EXPECT_THROW(packed({3, 5}, 4), BugError);
  EXPECT_THROW(packed({3, 0}, 4), BugError);
}

/// The definition, without any cleverness.
Lists slow_packs(const Ids& lengths, int64_t max_tokens) {
  Ids order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length_of = [&](int32_t sample) { return lengths[static_cast<size_t>(sample)]; };
  std::ranges::stable_sort(order, std::greater<>(), length_of);
  struct Pack {
    Ids samples;
    int64_t room, since;
  };
  std::vector<Pack> packs;
  int64_t now = 0;
  for (const int32_t sample : order) {
    Pack* best = nullptr;
    for (Pack& pack : packs) {
      if (pack.room < length_of(sample)) continue;
      if (best == nullptr || std::pair(pack.room, pack.since) < std::pair(best->room, best->since))
        best = &pack;
    }
    if (best == nullptr) best = &packs.emplace_back(Pack{{}, max_tokens, 0});
    best->samples.push_back(sample);
    best->room -= length_of(sample);
    best->since = ++now;
  }
  Lists all;
  for (Pack& pack : packs) all.push_back(std::move(pack.samples));
  return all;
}

RC_GTEST_PROP(PacksTest, EqualTheDefinition, ()) {
  const auto max_tokens = *rc::gen::inRange<int32_t>(1, 30);
  const auto lengths = *rc::gen::container<Ids>(rc::gen::inRange<int32_t>(1, max_tokens + 1));
  RC_ASSERT(packed(lengths, max_tokens) == slow_packs(lengths, max_tokens));
}

/// Lengths as of tuning sets: many short, few long.
Ids skewed_lengths(size_t count, int32_t longest) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> draw(5.0, 1.0);
  Ids lengths(count);
  for (int32_t& x : lengths)
    x = std::clamp<int32_t>(static_cast<int32_t>(draw(random)), 1, longest);
  return lengths;
}

/// Hardly more packs than the tokens need. An algorithm that looked at every pack for every sample
/// would take minutes: there are 10^11 pairs.
TEST(PacksTest, AreFewAlsoOfMillions) {
  constexpr int64_t kMax = 4096;
  const Ids lengths = skewed_lengths(2'000'000, kMax);
  const Packs packs = Packs::best_fit(lengths, kMax);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t fewest = ceil_div(tokens, kMax);
  EXPECT_LE(packs.size(), fewest + fewest / 10'000);
  std::vector<bool> seen(lengths.size());
  for (int32_t pack = 0; pack < packs.size(); ++pack) {
    int64_t size = 0;
    for (const int32_t sample : packs.samples(pack)) {
      ASSERT_FALSE(seen[static_cast<size_t>(sample)]);
      seen[static_cast<size_t>(sample)] = true;
      size += lengths[static_cast<size_t>(sample)];
    }
    ASSERT_LE(size, kMax);
  }
  EXPECT_EQ(packs.num_samples(), std::ssize(lengths));
}

// Micro-batches of packs ----------------------------------------------------------------------

class PackedSourceTest : public testing::Test {
 protected:
  static constexpr int64_t kMax = 12;
  static Lists rows() {
    Lists rows;
    for (int32_t i = 0; i < 41; ++i) rows.emplace_back(static_cast<size_t>(i * 7 % 12 + 1), i);
    return rows;
  }
  PackedSourceTest() : data_(rows(), {}), packs_(Packs::best_fit(data_.lengths(), kMax)) {
    options_.num_samples = packs_.size();
    options_.batch_size = 2;
    options_.num_ranks = 3;
    options_.accumulation_steps = 2;
    options_.num_epochs = 2;
    options_.shuffle = true;
    options_.seed = 42;
  }
  BatchSource source(int64_t rank) const { return {data_, packs_, StepPlan(options_), rank, 4}; }

  Dataset data_;
  Packs packs_;
  StepPlanOptions options_;
};

TEST_F(PackedSourceTest, FeedsTheSamplesOfItsPacks) {
  const StepPlan plan(options_);
  EpochOrder order(options_);
  BatchBuilder builder({1000, 1000, 1000});
  for (int64_t rank = 0; rank < options_.num_ranks; ++rank) {
    BatchSource packed = source(rank);
    const ops::BatchLayout layout{packed.capacity()};
    Ids found(static_cast<size_t>(layout.total()), -7), expected = found;
    for (int64_t step = 0; step < plan.total_steps(); ++step) {
      const auto at = plan.at(step);
      order.move_to(at.epoch);
      for (int64_t i = 0; i < at.num_micro_batches; ++i) {
        Ids samples;
        for (const int32_t pack : order.batch(rank, at.first_micro_batch + i)) {
          for (const int32_t sample : packs_.samples(pack)) samples.push_back(sample);
        }
        const auto extent = builder.build(data_, samples, layout, 4, expected.data());
        EXPECT_EQ(packed.fill(step, i, layout, found.data()), extent);
        EXPECT_EQ(packed.extent(step, i), extent);
        EXPECT_EQ(extent.sequences, std::ssize(samples));
        EXPECT_LE(extent.tokens, round_up(options_.batch_size * kMax, 4));
        EXPECT_EQ(found, expected);
      }
    }
  }
}

TEST_F(PackedSourceTest, CountsTokensAndSamplesOfAStep) {
  BatchSource packed = source(0);
  int64_t tokens = 0, samples = 0;
  for (int64_t step = 0; step < packed.plan().steps_per_epoch(); ++step) {
    tokens += packed.tokens_in_step(step);
    samples += packed.samples_in_step(step);
  }
  EXPECT_EQ(tokens, data_.counts().tokens);
  EXPECT_EQ(samples, data_.size());
}

RC_GTEST_PROP(PackedCapacityTest, IsThatOfTheLargestMicroBatch, ()) {
  const auto max_tokens = *rc::gen::inRange<int32_t>(1, 20);
  const auto lengths =
      *rc::gen::nonEmpty(rc::gen::container<Ids>(rc::gen::inRange<int32_t>(1, max_tokens + 1)));
  const Packs packs = Packs::best_fit(lengths, max_tokens);
  StepPlanOptions options;
  options.num_samples = packs.size();
  options.batch_size = *rc::gen::inRange(1, 5);
  options.num_ranks = *rc::gen::inRange(1, 4);
  options.max_steps = *rc::gen::inRange(1, 12);
  options.shuffle = *rc::gen::arbitrary<bool>();
  options.even_batches = *rc::gen::arbitrary<bool>();
  const StepPlan plan(options);
  EpochOrder order(options);
  ops::Extent largest;
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    const auto at = plan.at(step);
    order.move_to(at.epoch);
    for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
      const auto batch = order.batch(rank, at.first_micro_batch);
      const auto extent = extent_of(lengths, packs, batch, 4);
      largest.tokens = std::max(largest.tokens, extent.tokens);
      largest.sequences = std::max(largest.sequences, extent.sequences);
      largest.longest = std::max(largest.longest, extent.longest);
    }
  }
  RC_ASSERT(capacity_of(lengths, packs, plan, 4) == largest);
}

}  // namespace
}  // namespace trireme::data
