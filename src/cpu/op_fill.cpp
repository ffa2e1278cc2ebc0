// Whole matrices: zeroes and changes of precision.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_fill.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

void widen_rows(const TensorView& from, float* to, OpContext& context) {
  const Rows<const uint16_t> rows(from);
  parallel_ranges(context.num_threads(), from.rows, 1, from.size(),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      for_vectors(0, from.cols, [&](int64_t i, auto access) {
                        access.write(access.read(rows[r] + i), to + r * from.cols + i);
                      });
                    }
                  });
}

void narrow_rows(const float* from, const TensorView& to, bool accumulate, OpContext& context) {
  const Rows<uint16_t> rows(to);
  parallel_ranges(context.num_threads(), to.rows, 1, to.size(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for_vectors(0, to.cols, [&](int64_t i, auto access) {
        Vec v = access.read(from + r * to.cols + i);
        if (accumulate) v = hn::Add(access.read(rows[r] + i), v);
        access.write(v, rows[r] + i);
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(widen_rows);
void widen_matrix(const TensorView& from, float* to, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(widen_rows)(from, to, context);
}

HWY_EXPORT(narrow_rows);
void narrow_matrix(const float* from, const TensorView& to, bool accumulate, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(narrow_rows)(from, to, accumulate, context);
}

void zero_matrix(const TensorView& view, OpContext& context) {
  constexpr int64_t kPiece = 65536;  // bytes
  auto* bytes = static_cast<std::byte*>(view.data);
  const int64_t element = size_of(view.dtype);
  const bool dense = view.rows == 1 || view.stride == view.cols;
  const int64_t num_rows = dense ? 1 : view.rows;
  const int64_t row_bytes = (dense ? view.size() : view.cols) * element;
  const int64_t stride_bytes = view.stride * element;
  if (dense) {
    parallel_ranges(context.num_threads(), row_bytes, kPiece, row_bytes / 4,
                    [&](int64_t begin, int64_t end) {
                      std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
                    });
    return;
  }
  parallel_ranges(context.num_threads(), num_rows, 1, view.size(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memset(bytes + r * stride_bytes, 0, static_cast<size_t>(row_bytes));
    }
  });
}

void zero(const ops::OpCall& call, OpContext& context) { zero_matrix(call.args[0], context); }

}  // namespace trireme::cpu
#endif
