#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "mesh/box.h"
#include "support/properties.h"

namespace trireme::mesh {
namespace {

using Shape = std::vector<int64_t>;

/// Global row-major index of every element of `box`, in the order of the box.
std::vector<int64_t> elements(const Box& box, const Shape& shape) {
  std::vector<int64_t> result;
  Shape index(shape.size(), 0);
  for (int64_t n = 0; n < box.size(); ++n) {
    int64_t rest = n;
    int64_t global = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = box.start[d] + rest % box.extent[d];
      rest /= box.extent[d];
    }
    for (size_t d = 0; d < shape.size(); ++d) global = global * shape[d] + index[d];
    result.push_back(global);
  }
  return result;
}

Shape any_shape() {
  Shape shape;
  const int rank = *rc::gen::inRange(0, 5);
  for (int d = 0; d < rank; ++d) shape.push_back(*rc::gen::inRange<int64_t>(1, 6));
  return shape;
}

Box any_box(const Shape& shape) {
  Box box;
  for (const int64_t dim : shape) {
    box.start.push_back(*rc::gen::inRange<int64_t>(0, dim));
    box.extent.push_back(*rc::gen::inRange<int64_t>(0, dim - box.start.back() + 1));
  }
  return box;
}

TEST(Box, Basics) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({3, 0, 5}), 0);
  EXPECT_EQ(whole({2, 3}), (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(to_string(Box{{0, 8}, {4, 8}}), "[0:4, 8:16]");
  EXPECT_EQ(to_string(whole({})), "[]");
  EXPECT_THROW(num_elements({int64_t{1} << 40, int64_t{1} << 40}), BugError);
  Box common;
  EXPECT_FALSE(intersect(Box{{0}, {4}}, Box{{4}, {4}}, &common));
  EXPECT_TRUE(intersect(whole({}), whole({}), &common));
  EXPECT_THROW(intersect(Box{{0}, {4}}, whole({}), &common), BugError);
}

TEST(Box, RangeOfAMatrixIsTailRowsHead) {
  const Box box{{10, 20}, {4, 8}};
  EXPECT_EQ(boxes_of_range(box, 3, 29),
            (std::vector<Box>{{{10, 23}, {1, 5}}, {{11, 20}, {2, 8}}, {{13, 20}, {1, 5}}}));
  EXPECT_EQ(boxes_of_range(box, 3, 5), (std::vector<Box>{{{10, 23}, {1, 2}}}));
  EXPECT_EQ(boxes_of_range(box, 8, 24), (std::vector<Box>{{{11, 20}, {2, 8}}}));
  EXPECT_EQ(boxes_of_range(box, 0, 32), (std::vector<Box>{box}));
  EXPECT_TRUE(boxes_of_range(box, 5, 5).empty());
  EXPECT_EQ(boxes_of_range(whole({}), 0, 1), (std::vector<Box>{whole({})}));
  EXPECT_THROW(boxes_of_range(box, 0, 33), BugError);
}

RC_GTEST_PROP(BoxProperty, IntersectionIsTheSharedElements, ()) {
  const Shape shape = any_shape();
  const Box a = any_box(shape);
  const Box b = any_box(shape);
  std::vector<int64_t> in_a = elements(a, shape);
  std::vector<int64_t> in_b = elements(b, shape);
  std::vector<int64_t> shared;
  std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                        std::back_inserter(shared));
  Box common;
  const bool meet = intersect(a, b, &common);
  RC_ASSERT(meet == !shared.empty());
  if (meet) RC_ASSERT(elements(common, shape) == shared);
}

RC_GTEST_PROP(BoxProperty, RangeBoxesJoinToTheRange, ()) {
  const Shape shape = any_shape();
  const Box box = any_box(shape);
  const int64_t begin = *rc::gen::inRange<int64_t>(0, box.size() + 1);
  const int64_t end = *rc::gen::inRange<int64_t>(begin, box.size() + 1);
  const std::vector<int64_t> all = elements(box, shape);
  std::vector<int64_t> joined;
  const std::vector<Box> boxes = boxes_of_range(box, begin, end);
  for (const Box& piece : boxes) {
    const std::vector<int64_t> part = elements(piece, shape);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  RC_ASSERT(joined == std::vector<int64_t>(all.begin() + begin, all.begin() + end));
  RC_ASSERT(boxes.size() <= std::max<size_t>(1, 2 * shape.size() - 1));
}

RC_GTEST_PROP(BoxProperty, RunsCopyTheSharedElements, ()) {
  const Shape shape = any_shape();
  const Box source = any_box(shape);
  const Box target = any_box(shape);
  const std::vector<int64_t> from = elements(source, shape);
  const std::vector<int64_t> to = elements(target, shape);
  std::vector<int64_t> copied(to.size(), -1);
  const std::vector<Run> runs = copy_runs(source, target);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    RC_ASSERT(run.count > 0);
    for (int64_t k = 0; k < run.count; ++k) {
      RC_ASSERT(copied.at(static_cast<size_t>(run.to + k)) == -1);
      copied[static_cast<size_t>(run.to + k)] = from.at(static_cast<size_t>(run.from + k));
    }
    if (i > 0) {  // nothing left to merge
      const Run& before = runs[i - 1];
      RC_ASSERT(before.from + before.count != run.from || before.to + before.count != run.to);
    }
  }
  for (size_t i = 0; i < to.size(); ++i) {
    const bool shared = std::binary_search(from.begin(), from.end(), to[i]);
    RC_ASSERT(copied[i] == (shared ? to[i] : -1));
  }
}

TEST(Box, CopyOfTheWholeIsOneRun) {
  EXPECT_EQ(copy_runs(whole({3, 4, 5}), whole({3, 4, 5})).size(), 1u);
  const Box rows{{1, 0, 0}, {2, 4, 5}};
  ASSERT_EQ(copy_runs(whole({3, 4, 5}), rows).size(), 1u);
  EXPECT_EQ(copy_runs(whole({3, 4, 5}), rows)[0].from, 20);
  EXPECT_EQ(copy_runs(whole({3, 4, 1}), (Box{{0, 1, 0}, {3, 2, 1}})).size(), 3u);
}

}  // namespace
}  // namespace trireme::mesh
