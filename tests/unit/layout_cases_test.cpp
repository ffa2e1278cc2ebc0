// Which layouts `trireme selftest` compares with the single process, and what it takes for equal.
#include "train/layout_cases.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "support/backends.h"
#include "train/layout_check.h"

namespace trireme::train {
namespace {

int64_t data_ranks(const LayoutCase& test) {
  return test.ranks / (test.config.tensor_parallel_size * test.config.pipeline_parallel_size);
}

TEST(EveryLayout, IsAsManyAsTheWaysToCut) {
  const std::vector<std::pair<int, size_t>> counts = {{1, 2}, {2, 16}, {4, 48}, {6, 80}, {8, 104}};
  for (const auto& [ranks, count] : counts) {
    EXPECT_EQ(every_layout(ranks).size(), count) << ranks;
  }
}

TEST(EveryLayout, OfFourRanksIsThisList) {
  const std::vector<std::string> expected = {"dp4 tp1 pp1 zero0 ga2",
                                             "dp4 tp1 pp1 zero1 ga2",
                                             "dp4 tp1 pp1 zero1 ga2 group2",
                                             "dp4 tp1 pp1 zero2 ga2",
                                             "dp4 tp1 pp1 zero2 ga2 group2",
                                             "dp4 tp1 pp1 zero3 ga2",
                                             "dp4 tp1 pp1 zero3 ga2 group2",
                                             "dp2 tp1 pp2 zero0 ga4 1f1b",
                                             "dp2 tp1 pp2 zero1 ga4 1f1b",
                                             "dp2 tp1 pp2 zero2 ga4 1f1b",
                                             "dp2 tp1 pp2 zero3 ga4 1f1b",
                                             "dp2 tp1 pp2 zero3 ga4 interleaved x2",
                                             "dp2 tp1 pp2 zero3 ga4 zero_bubble",
                                             "dp1 tp1 pp4 zero0 ga8 1f1b",
                                             "dp1 tp1 pp4 zero0 ga8 interleaved x2",
                                             "dp1 tp1 pp4 zero0 ga8 zero_bubble",
                                             "dp2 tp2 pp1 zero0 ga4",
                                             "dp2 tp2 pp1 zero1 ga4",
                                             "dp2 tp2 pp1 zero2 ga4",
                                             "dp2 tp2 pp1 zero3 ga4",
                                             "dp1 tp2 pp2 zero0 ga8 1f1b",
                                             "dp1 tp2 pp2 zero0 ga8 interleaved x2",
                                             "dp1 tp2 pp2 zero0 ga8 zero_bubble",
                                             "dp1 tp4 pp1 zero0 ga8"};
  std::vector<std::string> found;
  for (const LayoutCase& test : every_layout(4)) found.push_back(layout_words(test));
  ASSERT_EQ(found.size(), 2 * expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i], expected[i]);
    EXPECT_EQ(found[expected.size() + i], expected[i] + " bf16");
  }
}

TEST(EveryLayout, HasEachCutOnceUnderEachState) {
  for (const int ranks : {1, 2, 4, 6, 8}) {
    std::set<std::string> words;
    std::set<std::tuple<int64_t, int64_t, int64_t>> cuts;
    for (const LayoutCase& test : every_layout(ranks)) {
      EXPECT_TRUE(words.insert(layout_words(test)).second) << layout_words(test);
      const config::RunConfig& c = test.config;
      cuts.emplace(data_ranks(test), c.tensor_parallel_size, c.pipeline_parallel_size);
    }
    std::set<std::tuple<int64_t, int64_t, int64_t>> expected;
    for (int64_t d = 1; d <= ranks; ++d) {
      for (int64_t t = 1; t <= ranks; ++t) {
        for (int64_t p = 1; p <= ranks; ++p) {
          if (d * t * p == ranks) expected.emplace(d, t, p);
        }
      }
    }
    EXPECT_EQ(cuts, expected) << ranks;
    // Six data ranks share the state by two and by three.
    for (const char* group : {"group2", "group3"}) {
      const std::string six = std::string("dp6 tp1 pp1 zero2 ga2 ") + group;
      EXPECT_EQ(words.contains(six), ranks == 6) << six;
    }
  }
}

TEST(EveryLayout, DividesItsModelAndTrainsTheSame) {
  for (const int ranks : {1, 2, 4, 6, 8}) {
    const std::vector<LayoutCase> all = every_layout(ranks);
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(layout_words(all[i]) + "; " + model_words(all[i]));
      const config::RunConfig& c = all[i].config;
      const int64_t tensor = c.tensor_parallel_size;
      const TinyModel& model = all[i].model;
      EXPECT_EQ(all[i].ranks, ranks);
      EXPECT_EQ(model.heads % tensor, 0);
      EXPECT_TRUE(model.kv_heads % tensor == 0 || tensor % model.kv_heads == 0);
      EXPECT_EQ(model.ffn % tensor, 0);
      EXPECT_EQ(model.vocab % tensor, 0);
      EXPECT_EQ(model.layers % (c.pipeline_parallel_size * c.virtual_pipeline_size), 0);
      EXPECT_EQ(c.per_device_train_batch_size * c.gradient_accumulation_steps * data_ranks(all[i]),
                all[i].samples_per_step);
      const LayoutCase& first = all[i < all.size() / 2 ? 0 : all.size() / 2];
      EXPECT_TRUE(train_alike(all[i], first));
      EXPECT_EQ(single_process_config(all[i]).bf16, i >= all.size() / 2);
    }
    EXPECT_FALSE(train_alike(all.front(), all.back()));
  }
}

TEST(DrawnLayouts, TakeEveryPrecisionAndPacking) {
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const LayoutCase drawn = draw_layout(seed, 16);
    ASSERT_LE(drawn.ranks, 16);
    const std::string words = layout_words(drawn) + " ";
    for (const char* word : {" bf16 ", " bf16_masters ", " packing "}) {
      if (words.find(word) != std::string::npos) found.insert(word);
    }
    const config::RunConfig single = single_process_config(drawn);
    EXPECT_EQ(single.packing, drawn.config.packing);
    EXPECT_EQ(single.master_dtype, drawn.config.master_dtype);
  }
  EXPECT_EQ(found.size(), 3u);
}

void run_in_world(int ranks, const std::function<void(int, device::Backend&)>& body) {
  testing::TestWorld world(ranks);
  on_ranks(ranks, [&](int rank) { body(rank, *world.open(rank)); });
}

/// Two tensor ranks, which in bf16 round otherwise; then other weights, samples and updates.
TEST(LayoutCheck, SeesAnotherTraining) {
  for (LayoutCase test : every_layout(2)) {
    if (test.config.tensor_parallel_size == 1) continue;
    SCOPED_TRACE(layout_words(test));
    const SingleProcess alone = train_alone(test, run_in_world);
    EXPECT_EQ(alone.rounding.gradients > 0, test.config.bf16);
    EXPECT_TRUE(compare(test, alone, run_in_world).agree(alone.rounding));
    LayoutCase faster = test;
    faster.config.learning_rate *= test.config.bf16 ? 3 : 1.01;
    const Differences updates = compare(faster, alone, run_in_world);
    EXPECT_LT(updates.gradients, 3e-5 + 4 * alone.rounding.gradients);
    EXPECT_FALSE(updates.agree(alone.rounding));
    test.seed += 1;
    const Differences all = compare(test, alone, run_in_world);
    EXPECT_GT(all.gradients, 0.5);
    EXPECT_FALSE(all.agree(alone.rounding));
  }
}

}  // namespace
}  // namespace trireme::train
