// Rows of a table, and the ordered sum of their gradients.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_embedding.cpp"
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

/// Sums the rows of one run of equal ids into columns [begin, end) of its table row.
template <typename T>
void sum_run(float* d_row, const Rows<T>& d_out, const int32_t* order, int64_t first, int64_t last,
             int64_t begin, int64_t end, bool accumulate) {
  for_vectors(begin, end, [&](int64_t c, auto access) {
    Vec sum = access.read(d_out[order[first]] + c);
    for (int64_t i = first + 1; i < last; ++i) {
      sum = hn::Add(sum, access.read(d_out[order[i]] + c));
    }
    if (accumulate) sum = hn::Add(access.read(d_row + c), sum);
    access.write(sum, d_row + c);
  });
}

/// Threads divide columns: every run of equal ids, however long, is shared by all of them.
void embedding_weight_grad_columns(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const auto* ids = data_of<int32_t>(args[2]);
  const auto* order = data_of<int32_t>(args[3]);
  const bool accumulate = call.law == ops::Law::add;
  const int64_t cols = args[0].cols;
  int64_t num_tokens = 0;
  while (num_tokens < args[3].cols && order[num_tokens] >= 0) ++num_tokens;
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<float> d_table(args[0]);
    const Rows<T> d_out(args[1]);
    const auto columns = [&](int64_t begin, int64_t end) {
      for (int64_t first = 0, last = 0; first < num_tokens; first = last) {
        const int32_t id = ids[order[first]];
        while (last < num_tokens && ids[order[last]] == id) ++last;
        sum_run(d_table[id], d_out, order, first, last, begin, end, accumulate);
      }
    };
    parallel_ranges(context.num_threads(), cols, 16, num_tokens * cols, columns);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

void embedding(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const auto* ids = data_of<int32_t>(args[2]);
  const auto row_bytes = static_cast<size_t>(args[0].cols * size_of(call.dtype));
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> out(args[0]), table(args[1]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (ids[r] < 0) {
          std::memset(out[r], 0, row_bytes);
        } else {
          std::memcpy(out[r], table[ids[r]], row_bytes);
        }
      }
    };
    parallel_ranges(context.num_threads(), args[0].rows, 1, args[0].size(), rows);
  });
}

HWY_EXPORT(embedding_weight_grad_columns);
void embedding_weight_grad(const ops::OpCall& call, OpContext& context) {
  if (call.law == ops::Law::set) zero_matrix(call.args[0], context);
  HWY_DYNAMIC_DISPATCH(embedding_weight_grad_columns)(call, context);
}

}  // namespace trireme::cpu
#endif
