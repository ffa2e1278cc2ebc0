// Rows of a table, and the ordered sum of their gradients.
#include <algorithm>

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

/// Places [first, last) of the order whose ids are held: it is sorted, so they lie together.
struct HeldPlaces {
  int64_t first;
  int64_t last;
  HeldPlaces(const int32_t* ids, const int32_t* order, int64_t size, const ops::HeldVocab& held) {
    const auto num_below = [&](int64_t bound) {
      const auto is_below = [&](int32_t token) { return token >= 0 && ids[token] < bound; };
      return std::partition_point(order, order + size, is_below) - order;
    };
    first = num_below(held.first);
    last = num_below(held.first + held.count);
  }
};

/// Threads divide columns: every run of equal ids, however long, is shared by all of them.
void embedding_weight_grad_columns(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const auto* ids = data_of<int32_t>(args[2]);
  const auto* order = data_of<int32_t>(args[3]);
  const bool accumulate = call.law == ops::Law::add;
  const int64_t cols = args[0].cols;
  const ops::HeldVocab held = call.attributes.held_vocab(args[0].rows);
  const HeldPlaces places(ids, order, args[3].cols, held);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<float> d_table(args[0]);
    const Rows<T> d_out(args[1]);
    const auto columns = [&](int64_t begin, int64_t end) {
      for (int64_t first = places.first, last = first; first < places.last; first = last) {
        const int32_t id = ids[order[first]];
        while (last < places.last && ids[order[last]] == id) ++last;
        sum_run(d_table[held.index_of(id)], d_out, order, first, last, begin, end, accumulate);
      }
    };
    parallel_ranges(context.num_threads(), cols, 16, (places.last - places.first) * cols, columns);
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
  const ops::HeldVocab held = call.attributes.held_vocab(args[1].rows);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> out(args[0]), table(args[1]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = held.index_of(ids[r]);
        if (row < 0) {
          std::memset(out[r], 0, row_bytes);
        } else {
          std::memcpy(out[r], table[row], row_bytes);
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
