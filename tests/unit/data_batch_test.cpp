// Batch descriptors against a construction by hand, and the source that feeds a rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/error.h"
#include "data/batch_builder.h"
#include "data/batch_source.h"
#include "support/temp_folder.h"

namespace trireme::data {
namespace {

using ops::BatchField;
using ops::BatchLayout;
using ops::Extent;
using Ids = std::vector<int32_t>;

constexpr int32_t kUntouched = -77;

struct Descriptor {
  BatchLayout layout;
  Ids words;
  explicit Descriptor(const Extent& capacity)
      : layout{capacity}, words(static_cast<size_t>(layout.total()), kUntouched) {}
  Ids field(BatchField field, const Extent& extent) const {
    const auto begin = words.begin() + layout.offset(field);
    return {begin, begin + BatchLayout::size(field, extent)};
  }
};

TEST(LengthCounts, AreByPowersOfTwo) {
  ops::LengthCounts counts;
  EXPECT_FALSE(counts.known());
  for (const int64_t length : {1, 64, 65, 128, 129, 4096, 4097}) counts.add(length);
  counts.add(int64_t{1} << 40);
  EXPECT_TRUE(counts.known());
  ops::LengthCounts expected;
  expected.of_class = {2, 2, 1, 0, 0, 0, 1, 1};
  expected.of_class.back() = 1;
  EXPECT_EQ(counts, expected);
}

TEST(BatchBuilderTest, SmallExample) {
  const Dataset data({{7, 3, 7}, {5}, {3, 9}}, {{7, 3, 7}, {5}, {-100, 4}});
  const Extent capacity{12, 4, 3};
  Descriptor descriptor(capacity);
  BatchBuilder builder(capacity);
  const Extent extent =
      builder.build(data, Ids{0, 1, 2}, descriptor.layout, 4, descriptor.words.data());
  Extent expected{8, 3, 3};
  for (const int64_t length : {3, 1, 2}) expected.lengths.add(length);
  EXPECT_EQ(extent, expected);
  EXPECT_EQ(descriptor.field(BatchField::ids, extent), (Ids{7, 3, 7, 5, 3, 9, -1, -1}));
  EXPECT_EQ(descriptor.field(BatchField::targets, extent),
            (Ids{3, 7, -100, -100, 4, -100, -100, -100}));
  EXPECT_EQ(descriptor.field(BatchField::positions, extent), (Ids{0, 1, 2, 0, 0, 1, 0, 0}));
  EXPECT_EQ(descriptor.field(BatchField::order, extent), (Ids{1, 4, 3, 0, 2, 5, -1, -1}));
  EXPECT_EQ(descriptor.field(BatchField::cu_seqlens, extent), (Ids{0, 3, 4, 6}));
  EXPECT_EQ(std::count(descriptor.words.begin(), descriptor.words.end(), kUntouched), 16 + 1);
}

TEST(BatchBuilderTest, EmptyMicroBatch) {
  const Dataset data({{7, 3}}, {});
  Descriptor descriptor({16, 1, 2});
  BatchBuilder builder(descriptor.layout.capacity);
  const Extent extent = builder.build(data, {}, descriptor.layout, 16, descriptor.words.data());
  EXPECT_EQ(extent, Extent{});
  EXPECT_EQ(descriptor.field(BatchField::cu_seqlens, extent), (Ids{0}));
  EXPECT_EQ(std::count(descriptor.words.begin(), descriptor.words.end(), kUntouched), 16 * 4 + 1);
}

TEST(BatchBuilderTest, OrderSortsLargeVocabularies) {
  std::mt19937 random(3);
  for (const uint32_t vocab : {1u, 2000u, 2048u, 152064u, 4194304u, 2000000000u}) {
    std::vector<Ids> rows(5);
    for (Ids& row : rows) {
      row.resize(1 + random() % 400);
      for (int32_t& id : row) {
        id = static_cast<int32_t>(random() % (random() % 2 == 0 ? vocab : std::min(vocab, 9u)));
      }
    }
    const Dataset data(rows, {});
    const Ids samples{4, 0, 2};
    Descriptor descriptor(extent_of(data.lengths(), samples, 64));
    BatchBuilder builder(descriptor.layout.capacity);
    const Extent extent =
        builder.build(data, samples, descriptor.layout, 64, descriptor.words.data());
    const Ids ids = descriptor.field(BatchField::ids, extent);
    const auto num_real = descriptor.field(BatchField::cu_seqlens, extent).back();
    Ids expected;
    for (int32_t i = 0; i < num_real; ++i) expected.push_back(i);
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
    });
    expected.resize(ids.size(), -1);
    EXPECT_EQ(descriptor.field(BatchField::order, extent), expected) << vocab;
  }
}

TEST(BatchBuilderTest, RefusesWhatWasNotPlanned) {
  const Dataset data({{1, 2, 3}, {4}}, {});
  Descriptor descriptor({3, 1, 3});
  BatchBuilder builder(descriptor.layout.capacity);
  const auto build = [&](const Ids& samples) {
    builder.build(data, samples, descriptor.layout, 1, descriptor.words.data());
  };
  build({0});
  EXPECT_THROW(build({0, 1}), BugError);
}

class BatchSourceTest : public testing::Test {
 protected:
  BatchSourceTest() : data_(rows(), {}) {
    options_.num_samples = 23;
    options_.batch_size = 2;
    options_.num_ranks = 3;
    options_.accumulation_steps = 3;
    options_.num_epochs = 3;
    options_.shuffle = true;
    options_.seed = 42;
  }
  static std::vector<Ids> rows() {
    std::vector<Ids> result;
    for (int32_t i = 0; i < 23; ++i) result.emplace_back(static_cast<size_t>(i % 5 + 1), i);
    return result;
  }
  Dataset data_;
  StepPlanOptions options_;
};

TEST_F(BatchSourceTest, FeedsEachRankItsMicroBatches) {
  const StepPlan plan(options_);
  EpochOrder order(options_);
  for (int64_t rank = 0; rank < 3; ++rank) {
    BatchSource source(data_, plan, rank, 4);
    const Extent capacity = source.capacity();
    EXPECT_EQ(capacity, capacity_of(data_.lengths(), Packs(data_.size()), plan, 4));
    Descriptor descriptor(capacity);
    for (int64_t step = 0; step < plan.total_steps(); ++step) {
      const auto at = plan.at(step);
      order.move_to(at.epoch);
      for (int64_t i = 0; i < at.num_micro_batches; ++i) {
        Ids expected;
        for (const int32_t sample : order.batch(rank, at.first_micro_batch + i)) {
          const auto ids = data_.ids(sample);
          expected.insert(expected.end(), ids.begin(), ids.end());
        }
        const Extent extent = source.fill(step, i, descriptor.layout, descriptor.words.data());
        EXPECT_EQ(extent, source.extent(step, i));
        EXPECT_EQ(extent, source.extent(step, i, rank));
        expected.resize(static_cast<size_t>(extent.tokens), -1);
        EXPECT_EQ(descriptor.field(BatchField::ids, extent), expected);
      }
    }
  }
}

TEST_F(BatchSourceTest, CountsTheTokensOfAStep) {
  const StepPlan plan(options_);
  BatchSource source(data_, plan, 0, 16);
  int64_t tokens = 0;
  for (int64_t step = 0; step < plan.steps_per_epoch(); ++step) {
    tokens += source.tokens_in_step(step);
  }
  EXPECT_EQ(tokens, data_.counts().tokens);
}

TEST_F(BatchSourceTest, OneThreadMayRunAheadOfAnother) {
  const StepPlan plan(options_);
  BatchSource source(data_, plan, 1, 4);
  BatchSource alone(data_, plan, 1, 4);
  std::vector<Extent> ahead;
  std::jthread thread([&] {
    Descriptor descriptor(source.capacity());
    for (int64_t step = 0; step < plan.total_steps(); ++step) {
      for (int64_t i = 0; i < plan.at(step).num_micro_batches; ++i) {
        ahead.push_back(source.fill(step, i, descriptor.layout, descriptor.words.data()));
      }
    }
  });
  std::vector<Extent> behind;
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    for (int64_t i = 0; i < plan.at(step).num_micro_batches; ++i) {
      behind.push_back(source.extent(step, i));
      EXPECT_EQ(behind.back(), alone.extent(step, i));
    }
  }
  thread.join();
  EXPECT_EQ(ahead, behind);
}

}  // namespace
}  // namespace trireme::data
