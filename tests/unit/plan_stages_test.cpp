#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "plan/stages.h"
#include "support/properties.h"

namespace trireme::plan {
namespace {

std::vector<int> sizes(const std::vector<UnitRange>& ranges) {
  std::vector<int> result;
  int at = 0;
  for (const UnitRange& range : ranges) {
    EXPECT_EQ(range.begin, at);
    at = range.end;
    result.push_back(range.size());
  }
  return result;
}

/// The smallest largest cost over all cuts, by trying them.
double best_cost(const std::vector<double>& costs, size_t begin, int64_t stages) {
  if (stages == 1) {
    double sum = 0;
    for (size_t i = begin; i < costs.size(); ++i) sum += costs[i];
    return sum;
  }
  double best = 1e300;
  double sum = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(stages) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, best_cost(costs, end, stages - 1)));
  }
  return best;
}

TEST(Stages, ALargeHeadTakesBlocksOffTheLastStage) {
  // embedding, 8 blocks, head as heavy as two blocks
  const std::vector<double> costs = {0.1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
  EXPECT_EQ(sizes(balanced_stages(costs, 2)), (std::vector{6, 4}));
  EXPECT_EQ(sizes(balanced_stages(costs, 4)), (std::vector{3, 3, 3, 1}));
  EXPECT_EQ(sizes(balanced_stages(costs, 1)), (std::vector{10}));
}

TEST(Stages, EveryStageHasAUnit) {
  EXPECT_EQ(sizes(balanced_stages({0, 5, 0}, 3)), (std::vector{1, 1, 1}));
  try {
    balanced_stages({1, 1, 1}, 4);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("pipeline_parallel_size"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("3 units"), std::string::npos);
  }
}

TEST(Stages, NoCutHasASmallerLargestStage) {
  rc::check("the largest stage is as small as it can be", [] {
    const int units = *rc::gen::inRange(1, 9);
    std::vector<double> costs;
    for (int i = 0; i < units; ++i) costs.push_back(*rc::gen::inRange(0, 20));
    const int64_t stages = *rc::gen::inRange(1, units + 1);
    double largest = 0;
    const std::vector<UnitRange> ranges = balanced_stages(costs, stages);
    RC_ASSERT(static_cast<int64_t>(ranges.size()) == stages);
    int at = 0;
    for (const UnitRange& range : ranges) {
      RC_ASSERT(range.begin == at && range.size() > 0);
      at = range.end;
      double cost = 0;
      for (int u = range.begin; u < range.end; ++u) cost += costs[static_cast<size_t>(u)];
      largest = std::max(largest, cost);
    }
    RC_ASSERT(at == units);
    RC_ASSERT(largest == best_cost(costs, 0, stages));
  });
}

TEST(Stages, ByHand) {
  EXPECT_EQ(sizes(stages_by_hand({4, 5, 5, 4}, 18, 4)), (std::vector{5, 5, 5, 5}));
  EXPECT_EQ(sizes(stages_by_hand({0, 3, 0}, 3, 3)), (std::vector{1, 3, 1}));
  EXPECT_EQ(sizes(stages_by_hand({3}, 3, 1)), (std::vector{5}));
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{4, 5}, {4, 5, 5, 5}, {9, 0, 9, 0}, {19, -1, 0, 0}, {}}) {
    EXPECT_THROW(stages_by_hand(wrong, 18, 4), ConfigError);
  }
}

}  // namespace
}  // namespace trireme::plan
