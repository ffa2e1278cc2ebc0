#include "mesh/layout.h"

#include <array>

#include "base/error.h"
#include "base/math.h"

namespace trireme::mesh {

namespace {

struct Digit {
  Axes axis = 0;
  int64_t radix = 1;
};

/// The axes of a rank number, fastest first.
std::array<Digit, 4> digits_of(const Layout& layout) {
  check(layout.tp > 0 && layout.pp > 0 && layout.dp > 0, "a layout of {} x {} x {} ranks",
        layout.tp, layout.dp, layout.pp);
  const Digit tensor{kTensor, layout.tp};
  const Digit shard{kShard, layout.shard_ranks()};
  const Digit replica{kReplica, div_exact(layout.dp, layout.shard_ranks())};
  const Digit pipeline{kPipeline, layout.pp};
  if (layout.order == RankOrder::tp_dp_pp) return {tensor, shard, replica, pipeline};
  return {tensor, pipeline, shard, replica};
}

/// Numbers that vary along the chosen axes, ascending; 0 first.
std::vector<int64_t> offsets(const Layout& layout, Axes axes) {
  std::vector<int64_t> result = {0};
  int64_t stride = 1;
  for (const Digit& digit : digits_of(layout)) {
    if ((axes & digit.axis) != 0) {
      const size_t count = result.size();
      for (int64_t at = 1; at < digit.radix; ++at) {
        for (size_t i = 0; i < count; ++i) result.push_back(result[i] + at * stride);
      }
    }
    stride *= digit.radix;
  }
  return result;
}

void check_rank(const Layout& layout, int64_t rank) {
  check(rank >= 0 && rank < layout.world_size(), "rank {} of {}", rank, layout.world_size());
}

}  // namespace

Coordinates coordinates_of(const Layout& layout, int64_t rank) {
  check_rank(layout, rank);
  const int64_t outer = rank / layout.tp;
  if (layout.order == RankOrder::tp_dp_pp) {
    return {rank % layout.tp, outer % layout.dp, outer / layout.dp};
  }
  return {rank % layout.tp, outer / layout.pp, outer % layout.pp};
}

int64_t rank_of(const Layout& layout, const Coordinates& at) {
  check(at.tp >= 0 && at.tp < layout.tp && at.dp >= 0 && at.dp < layout.dp && at.pp >= 0 &&
            at.pp < layout.pp,
        "no rank at tp {}, dp {}, pp {}", at.tp, at.dp, at.pp);
  return layout.order == RankOrder::tp_dp_pp ? at.tp + layout.tp * (at.dp + layout.dp * at.pp)
                                             : at.tp + layout.tp * (at.pp + layout.pp * at.dp);
}

std::vector<int64_t> group_of(const Layout& layout, Axes axes, int64_t rank) {
  check_rank(layout, rank);
  int64_t first = rank;
  int64_t stride = 1;
  for (const Digit& digit : digits_of(layout)) {
    if ((axes & digit.axis) != 0) first -= rank / stride % digit.radix * stride;
    stride *= digit.radix;
  }
  std::vector<int64_t> members = offsets(layout, axes);
  for (int64_t& member : members) member += first;
  return members;
}

std::vector<std::vector<int64_t>> all_groups(const Layout& layout, Axes axes) {
  std::vector<std::vector<int64_t>> groups;
  for (const int64_t first : offsets(layout, static_cast<Axes>(kWorld & ~axes))) {
    groups.push_back(group_of(layout, axes, first));
  }
  return groups;
}

}  // namespace trireme::mesh
