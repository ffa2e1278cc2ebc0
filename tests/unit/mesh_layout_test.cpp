#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "mesh/layout.h"

namespace trireme::mesh {
namespace {

using Ranks = std::vector<int64_t>;

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (const RankOrder order : {RankOrder::tp_dp_pp, RankOrder::tp_pp_dp}) {
    for (int64_t tp = 1; tp <= 3; ++tp) {
      for (int64_t pp = 1; pp <= 3; ++pp) {
        result.push_back({tp, pp, 6, order, 0});
        result.push_back({tp, pp, 6, order, 2});
      }
    }
  }
  return result;
}

TEST(Layout, ReplicaZeroIsTheFirstRanksWhereDataIsTheSlowestAxis) {
  const Layout layout{2, 2, 4, RankOrder::tp_pp_dp, 0};
  EXPECT_EQ(layout.world_size(), 16);
  EXPECT_EQ(group_of(layout, kTensor | kPipeline, 0), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(group_of(layout, kData, 6), (Ranks{2, 6, 10, 14}));
  EXPECT_EQ(group_of(layout, kPipeline, 5), (Ranks{5, 7}));
}

TEST(Layout, StagesAreHalvesOfTheWorldByDefault) {
  const Layout layout{2, 2, 4};
  EXPECT_EQ(group_of(layout, kTensor | kPipeline, 0), (Ranks{0, 1, 8, 9}));
  EXPECT_EQ(group_of(layout, kData, 3), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(group_of(layout, kPipeline, 5), (Ranks{5, 13}));
  EXPECT_EQ(all_groups(layout, kTensor)[5], (Ranks{10, 11}));
}

TEST(Layout, ShardsAreNeighboursAmongTheDataRanks) {
  const Layout layout{2, 1, 4, RankOrder::tp_dp_pp, 2};
  EXPECT_EQ(group_of(layout, kShard, 5), (Ranks{5, 7}));
  EXPECT_EQ(group_of(layout, kReplica, 5), (Ranks{1, 5}));
  EXPECT_EQ(group_of(layout, kData, 5), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(all_groups(layout, kShard), (std::vector<Ranks>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(Layout, RanksAndCoordinatesAreTheSame) {
  for (const Layout& layout : layouts()) {
    for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
      EXPECT_EQ(rank_of(layout, coordinates_of(layout, rank)), rank);
    }
    EXPECT_THROW(coordinates_of(layout, layout.world_size()), BugError);
    EXPECT_THROW(rank_of(layout, {0, 0, layout.pp}), BugError);
  }
}

TEST(Layout, GroupsOfAnyAxesPartTheWorld) {
  for (const Layout& layout : layouts()) {
    for (Axes axes = 0; axes <= kWorld; ++axes) {
      std::set<int64_t> seen;
      int64_t first = -1;
      for (const Ranks& group : all_groups(layout, axes)) {
        EXPECT_GT(group.front(), first);
        first = group.front();
        for (const int64_t rank : group) {
          EXPECT_TRUE(seen.insert(rank).second);
          EXPECT_EQ(group_of(layout, axes, rank), group);
          const Coordinates at = coordinates_of(layout, rank);
          const Coordinates of_first = coordinates_of(layout, first);
          const int64_t shards = layout.shard_ranks();
          EXPECT_TRUE((axes & kTensor) != 0 || at.tp == of_first.tp);
          EXPECT_TRUE((axes & kPipeline) != 0 || at.pp == of_first.pp);
          EXPECT_TRUE((axes & kShard) != 0 || at.dp % shards == of_first.dp % shards);
          EXPECT_TRUE((axes & kReplica) != 0 || at.dp / shards == of_first.dp / shards);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), layout.world_size());
    }
  }
}

}  // namespace
}  // namespace trireme::mesh
