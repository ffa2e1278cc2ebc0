#include "mesh/box.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace trireme::mesh {

int64_t num_elements(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t dim : shape) {
    check(dim >= 0, "a dimension of {}", dim);
    size = checked_mul(size, dim);
  }
  return size;
}

int64_t Box::size() const { return num_elements(extent); }

Box whole(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.start.size(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.start[d], box.start[d] + box.extent[d]);
  }
  return text + "]";
}

bool intersect(const Box& a, const Box& b, Box* common) {
  const size_t rank = a.start.size();
  check(b.start.size() == rank, "boxes {} and {} differ in rank", to_string(a), to_string(b));
  common->start.resize(rank);
  common->extent.resize(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t begin = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (begin >= end) return false;
    common->start[d] = begin;
    common->extent[d] = end - begin;
  }
  return true;
}

namespace {

/// strides[d] = elements from one index of dimension d to the next.
std::vector<int64_t> strides_of(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

}  // namespace

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  check(0 <= begin && begin <= end && end <= box.size(), "elements [{}, {}) of box {}", begin, end,
        to_string(box));
  const size_t rank = box.start.size();
  if (begin == end) return {};
  if (rank == 0) return {box};
  const std::vector<int64_t> strides = strides_of(box.extent);
  std::vector<Box> boxes;
  while (begin < end) {
    // The outermost dimension in which whole slabs start here.
    size_t d = 0;
    while (begin % strides[d] != 0 || end - begin < strides[d]) ++d;
    Box piece = box;
    for (size_t k = 0; k <= d; ++k) {
      const int64_t index = begin / strides[k] % box.extent[k];
      piece.start[k] = box.start[k] + index;
      piece.extent[k] = 1;
      if (k == d) piece.extent[k] = std::min((end - begin) / strides[k], box.extent[k] - index);
    }
    begin += piece.extent[d] * strides[d];
    boxes.push_back(std::move(piece));
  }
  return boxes;
}

std::vector<Run> copy_runs(const Box& source, const Box& target) {
  Box common;
  if (!intersect(source, target, &common)) return {};
  const size_t rank = common.start.size();
  if (rank == 0) return {{0, 0, 1}};
  const std::vector<int64_t> from_strides = strides_of(source.extent);
  const std::vector<int64_t> to_strides = strides_of(target.extent);

  // Dimensions [inner, rank) are one run in both boxes.
  size_t inner = rank - 1;
  while (inner > 0 && common.extent[inner] == source.extent[inner] &&
         common.extent[inner] == target.extent[inner]) {
    --inner;
  }
  int64_t count = 1;
  for (size_t d = inner; d < rank; ++d) count *= common.extent[d];

  std::vector<int64_t> index(common.start);
  std::vector<Run> runs;
  while (true) {
    int64_t from = 0;
    int64_t to = 0;
    for (size_t d = 0; d < rank; ++d) {
      from += (index[d] - source.start[d]) * from_strides[d];
      to += (index[d] - target.start[d]) * to_strides[d];
    }
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->from + last->count == from && last->to + last->count == to) {
      last->count += count;
    } else {
      runs.push_back({from, to, count});
    }
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == common.start[d - 1] + common.extent[d - 1]) {
      index[d - 1] = common.start[d - 1];
      --d;
    }
    if (d == 0) return runs;
  }
}

}  // namespace trireme::mesh
