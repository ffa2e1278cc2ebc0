// Among whom the transfers of a program run: the groups of ranks along each axis.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mesh/layout.h"

namespace trireme::plan {

/// The group of a transfer, as a rank sees it. Those of a pipeline are pairs whose first rank sends
/// and whose second receives, one pair for each direction between neighbours.
enum class GroupAxis : uint8_t {
  shard,          // ranks that share one copy of the state
  replica,        // ranks that hold the same part of different copies
  world,          // all
  tensor,         // ranks that share the products of one micro-batch
  kv_replicas,    // those of them that hold the same key and value heads
  tied_ends,      // first and last stage, which both hold a tied embedding
  to_next,        // activations to the next stage
  from_previous,  // from the stage before
  to_previous,    // their gradients back to it
  from_next,      // and from the next
};
inline constexpr int kNumAxes = 10;
std::string_view name_of(GroupAxis axis);

/// The world as the plan of one rank sees it.
struct Mesh {
  mesh::Layout layout;
  mesh::Coordinates at;
  int64_t kv_replicas = 1;  // of the tensor ranks: neighbours that hold the same KV heads
  bool tied_ends = false;   // first and last stage hold one parameter
  int chunks = 1;           // virtual stages of a rank

  int64_t rank() const { return mesh::rank_of(layout, at); }
  bool first_stage() const { return at.pp == 0; }
  bool last_stage() const { return at.pp + 1 == layout.pp; }
};

struct AxisGroup {
  GroupAxis axis{};        // of a pair: to_next or to_previous
  std::vector<int> ranks;  // in group-rank order
};
/// Every group of the world but the world itself, in the order in which all ranks make their
/// communicators.
std::vector<AxisGroup> axis_groups(const Mesh& mesh);

/// Ranks of the group that `mesh`'s rank meets on an axis, in group-rank order.
std::vector<int> members(const Mesh& mesh, GroupAxis axis);
int64_t group_size(const Mesh& mesh, GroupAxis axis);

/// The axis by which `rank` knows a group of axis_groups that it belongs to.
GroupAxis axis_seen_by(const AxisGroup& group, int rank);

}  // namespace trireme::plan
