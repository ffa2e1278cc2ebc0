// Boxes: which part of a global tensor somebody holds. ZeRO slices, TP splits, checkpoints,
// resharding, hashing and export all speak boxes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::mesh {

/// A half-open hyper-rectangle of a row-major tensor. start and extent have the tensor's rank;
/// a scalar has rank 0.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> extent;
  bool operator==(const Box&) const = default;
  int64_t size() const;
};

/// Number of elements of a shape.
int64_t num_elements(const std::vector<int64_t>& shape);
/// The box that is the whole tensor.
Box whole(const std::vector<int64_t>& shape);
/// "[0:4, 8:16]".
std::string to_string(const Box& box);
/// True when they share an element; *common receives the shared box.
bool intersect(const Box& a, const Box& b, Box* common);

/// Elements [begin, end) of the flattened box, as the smallest list of boxes in element order
/// (for a matrix at most three: tail of a row, whole rows, head of a row).
std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end);

/// One contiguous run of a copy between two boxes of the same tensor, each stored row-major and
/// dense: `count` elements from offset `from` in the source box to offset `to` in the target box.
struct Run {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};
/// The runs that copy the part shared by `source` and `target`, merged as far as they join.
std::vector<Run> copy_runs(const Box& source, const Box& target);

}  // namespace trireme::mesh
