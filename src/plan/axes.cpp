#include "plan/axes.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace trireme::plan {

namespace {

std::vector<int> narrow(const std::vector<int64_t>& ranks) {
  return {ranks.begin(), ranks.end()};
}

class GroupLister {
 public:
  explicit GroupLister(const Mesh& mesh) : mesh_(mesh) {}

  std::vector<AxisGroup> run() {
    add(GroupAxis::shard, mesh::kShard);
    if (mesh_.layout.dp > mesh_.layout.shard_ranks()) add(GroupAxis::replica, mesh::kReplica);
    if (mesh_.layout.tp > 1) add(GroupAxis::tensor, mesh::kTensor);
    if (mesh_.kv_replicas > 1) add_kv_replicas();
    if (mesh_.layout.pp > 1) add_pipelines();
    return std::move(groups_);
  }

 private:
  void add(GroupAxis axis, mesh::Axes axes) {
    for (const auto& ranks : mesh::all_groups(mesh_.layout, axes)) {
      groups_.push_back({axis, narrow(ranks)});
    }
  }

  void add_kv_replicas() {
    for (const auto& ranks : mesh::all_groups(mesh_.layout, mesh::kTensor)) {
      for (auto at = ranks.begin(); at != ranks.end(); at += mesh_.kv_replicas) {
        groups_.push_back({GroupAxis::kv_replicas, narrow({at, at + mesh_.kv_replicas})});
      }
    }
  }

  void add_pipelines() {
    for (const auto& wide : mesh::all_groups(mesh_.layout, mesh::kPipeline)) {
      const std::vector<int> stages = narrow(wide);
      const size_t count = stages.size();
      if (mesh_.tied_ends) {
        groups_.push_back({GroupAxis::tied_ends, {stages.front(), stages.back()}});
      }
      // Several chunks: what leaves the last stage goes on at the first.
      for (size_t p = 0; p + (mesh_.chunks > 1 ? 0 : 1) < count; ++p) {
        const int next = stages[(p + 1) % count];
        groups_.push_back({GroupAxis::to_next, {stages[p], next}});
        groups_.push_back({GroupAxis::to_previous, {next, stages[p]}});
      }
    }
  }

  const Mesh& mesh_;
  std::vector<AxisGroup> groups_;
};

}  // namespace

std::string_view name_of(GroupAxis axis) {
  static constexpr std::array<std::string_view, kNumAxes> kNames = {
      "dp",        "replica",       "world",       "tp",       "kv",
      "tied ends", "to next", "from previous", "to previous", "from next"};
  return kNames[static_cast<size_t>(axis)];
}

std::vector<AxisGroup> axis_groups(const Mesh& mesh) { return GroupLister(mesh).run(); }

GroupAxis axis_seen_by(const AxisGroup& group, int rank) {
  const bool sends = group.ranks.front() == rank;
  if (group.axis == GroupAxis::to_next) return sends ? group.axis : GroupAxis::from_previous;
  if (group.axis == GroupAxis::to_previous) return sends ? group.axis : GroupAxis::from_next;
  return group.axis;
}

std::vector<int> members(const Mesh& mesh, GroupAxis axis) {
  const int rank = static_cast<int>(mesh.rank());
  if (axis == GroupAxis::world) {
    std::vector<int> all(static_cast<size_t>(mesh.layout.world_size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  for (const AxisGroup& group : axis_groups(mesh)) {
    const bool inside = std::find(group.ranks.begin(), group.ranks.end(), rank) !=
                        group.ranks.end();
    if (inside && axis_seen_by(group, rank) == axis) return group.ranks;
  }
  throw BugError(fmt::format("rank {} has no group along {}", rank, name_of(axis)));
}

int64_t group_size(const Mesh& mesh, GroupAxis axis) {
  switch (axis) {
    case GroupAxis::shard:
      return mesh.layout.shard_ranks();
    case GroupAxis::replica:
      return mesh.layout.dp / mesh.layout.shard_ranks();
    case GroupAxis::world:
      return mesh.layout.world_size();
    case GroupAxis::tensor:
      return mesh.layout.tp;
    case GroupAxis::kv_replicas:
      return mesh.kv_replicas;
    default:
      return 2;
  }
}

}  // namespace trireme::plan
