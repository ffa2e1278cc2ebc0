#include <gtest/gtest.h>

#include <algorithm>

#include "plan/memory.h"
#include "support/properties.h"

namespace trireme::plan {
namespace {

struct Item {
  int64_t bytes;
  int begin;
  int end;
};

Packing pack_intervals(const std::vector<Item>& items) {
  std::vector<int64_t> bytes;
  Conflicts conflicts(items.size());
  for (size_t a = 0; a < items.size(); ++a) {
    bytes.push_back(items[a].bytes);
    for (size_t b = 0; b < a; ++b) {
      if (items[a].begin <= items[b].end && items[b].begin <= items[a].end) conflicts.add(a, b);
    }
  }
  return pack(bytes, conflicts);
}

TEST(Memory, NothingAliveOverlaps) {
  rc::check("packed intervals do not overlap", [] {
    std::vector<Item> items;
    const int count = *rc::gen::inRange(0, 60);
    for (int i = 0; i < count; ++i) {
      const int begin = *rc::gen::inRange(0, 40);
      items.push_back(
          {*rc::gen::inRange<int64_t>(0, 5000), begin, begin + *rc::gen::inRange(0, 20)});
    }
    const Packing packing = pack_intervals(items);
    for (size_t a = 0; a < items.size(); ++a) {
      RC_ASSERT(packing.offsets[a] % kAlignment == 0);
      RC_ASSERT(packing.offsets[a] + items[a].bytes <= packing.total);
      for (size_t b = 0; b < a; ++b) {
        const bool together = items[a].begin <= items[b].end && items[b].begin <= items[a].end;
        const bool apart = packing.offsets[a] + items[a].bytes <= packing.offsets[b] ||
                           packing.offsets[b] + items[b].bytes <= packing.offsets[a];
        RC_ASSERT(!together || apart || items[a].bytes == 0 || items[b].bytes == 0);
      }
    }
  });
}

TEST(Memory, ItemsThatNeverMeetShare) {
  const Packing packing = pack_intervals({{1024, 0, 1}, {1024, 2, 3}, {512, 4, 5}});
  EXPECT_EQ(packing.total, 1024);
}

TEST(Memory, AStackOfActivationsNeedsNoMoreThanItHolds) {
  // Forward acquires, backward releases in reverse; a large frame lives at each end.
  std::vector<Item> items;
  int64_t held = 0;
  for (int i = 0; i < 20; ++i) {
    items.push_back({4096 * (i % 3 + 1), i, 60 - i});
    held += items.back().bytes;
  }
  items.push_back({50000, 25, 26});
  EXPECT_EQ(pack_intervals(items).total, held + 50176);
}

}  // namespace
}  // namespace trireme::plan
