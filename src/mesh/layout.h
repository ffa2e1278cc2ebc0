// How the ranks of a world lie along the axes of parallelism. Pure integers.
//
// A rank's number is read in mixed radix: each axis is a digit, the first axis of the rank order
// varies fastest. Groups are the ranks that differ along some axes only.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::mesh {

/// Which axis varies fastest. tp_dp_pp: tensor, data, pipeline; tp_pp_dp: tensor, pipeline, data,
/// so that a replica is a run of neighbouring ranks.
enum class RankOrder : uint8_t { tp_dp_pp, tp_pp_dp };

/// A set of axes. Data ranks split into shards of one copy of the state (fastest) and replicas of
/// it.
using Axes = uint8_t;
inline constexpr Axes kTensor = 1;
inline constexpr Axes kShard = 2;
inline constexpr Axes kReplica = 4;
inline constexpr Axes kPipeline = 8;
inline constexpr Axes kData = kShard | kReplica;
inline constexpr Axes kWorld = kTensor | kData | kPipeline;

struct Layout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  RankOrder order = RankOrder::tp_dp_pp;
  int64_t shards = 0;  // of dp: neighbours that hold one copy of the state; 0: all of them
  bool operator==(const Layout&) const = default;

  int64_t world_size() const { return tp * pp * dp; }
  int64_t shard_ranks() const { return shards == 0 ? dp : shards; }
};

struct Coordinates {
  int64_t tp = 0;
  int64_t dp = 0;  // replica x shard ranks + shard
  int64_t pp = 0;
  bool operator==(const Coordinates&) const = default;
};

/// Both check their arguments' ranges.
Coordinates coordinates_of(const Layout& layout, int64_t rank);
int64_t rank_of(const Layout& layout, const Coordinates& coordinates);

/// The ranks that differ from `rank` along `axes` only, itself among them, ascending.
std::vector<int64_t> group_of(const Layout& layout, Axes axes, int64_t rank);
/// Every group of `axes`, by its first rank: the order in which all ranks make their
/// communicators.
std::vector<std::vector<int64_t>> all_groups(const Layout& layout, Axes axes);

}  // namespace trireme::mesh
