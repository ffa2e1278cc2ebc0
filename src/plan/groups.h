// Parameter groups: the flat buffers that sharding moves.
//
// A unit's parameters lie in one flat buffer per class. A slot's tensors (q, k, v; gate, up) lie
// without gaps where the matrix product reads them; slots start at multiples of kSlotAlignment;
// a group is padded to shard ranks x kSliceAlignment elements, and shard rank r owns elements
// [r * slice, (r + 1) * slice) of every plane. Every ZeRO stage has these owners. A tensor-parallel
// rank's groups hold its parts of the tensors, a pipeline stage's those of its units.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "model/graph.h"
#include "plan/tensor_parallel.h"

namespace trireme::plan {

inline constexpr int64_t kSlotAlignment = 64;
inline constexpr int64_t kSliceAlignment = 128;

/// What makes parameters of one unit part company: every collective treats a group as one.
struct ClassKey {
  bool tensor_sum = false;  // every tensor-parallel rank has a part of the gradient
  bool trainable = true;
  bool persistent = false;  // stays gathered under ZeRO-3
  int tied = -1;            // parameter shared by several units: a group of its own
  auto operator<=>(const ClassKey&) const = default;
};

/// One tensor of the model inside a group: the box of it that this rank holds, dense, row-major.
struct Placed {
  int parameter = 0;
  int64_t offset = 0;  // elements
  int64_t size = 0;    // of the box; padding may follow
  mesh::Box box;
  SumGroup sum = SumGroup::none;
  bool counted = true;  // see LocalTensor
};

/// A run of a slice that holds parameters of one weight-decay rule, without gaps.
struct Segment {
  int64_t begin = 0;  // elements within the group
  int64_t end = 0;
  bool decay = true;
  bool counted = true;
  const Placed* first = nullptr;  // the parameter it begins in; borrowed from the group
};

struct ParameterGroup {
  std::string name;  // "block.3", "block.3.persistent", "embed.tied"
  int unit = 0;      // first unit that uses it
  ClassKey key;
  std::vector<Placed> placed;  // in storage order
  int64_t size = 0;            // padded elements
  int64_t slice = 0;           // size / shard ranks
};

/// Where a slot of a unit lies.
struct SlotPlace {
  int group = -1;
  int64_t offset = 0;  // elements
};

struct Groups {
  std::vector<ParameterGroup> groups;
  /// places[unit][slot]; empty for units of other pipeline stages.
  std::vector<std::vector<SlotPlace>> places;
  int64_t shard_ranks = 1;
};

struct GroupRequest {
  const TensorPart* part = nullptr;
  std::vector<int> units;  // of this rank, ascending
  int64_t shard_ranks = 1;
  int64_t persistence_threshold = -1;  // tensors of at most so many elements stay gathered (ZeRO-3)
};
Groups make_groups(const GroupRequest& request);

/// Segments of elements [begin, end) of a group, in order. `join`: neighbours of one rule are one
/// segment; else each parameter has its own.
std::vector<Segment> segments(const model::ModelGraph& model, const ParameterGroup& group,
                              int64_t begin, int64_t end, bool join = true);

/// A part of a tensor that a range of a group holds: `box` of the tensor from `offset` elements
/// after the start of the group on, dense and row-major.
struct HeldBox {
  int parameter = 0;
  mesh::Box box;
  int64_t offset = 0;
  bool counted = true;
};
/// The boxes that elements [begin, end) of a group hold, in storage order.
std::vector<HeldBox> held_boxes(const ParameterGroup& group, int64_t begin, int64_t end);

}  // namespace trireme::plan
