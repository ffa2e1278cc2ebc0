// RMS norm of query and key heads, and its gradients.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_qk_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "cpu/kernel_norm-inl.h"
#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// The heads of a row of qkv that are normalised: body(column, row of the gain).
template <typename Body>
void for_heads(const ops::Attributes& a, const Body& body) {
  const int64_t heads = a.heads;
  for (int64_t head = 0; head < heads + a.kv_heads; ++head) {
    body(head * a.head_dim, head < heads ? 0 : 1);
  }
}

template <typename T>
void copy_values(T* to, const T* from, const ops::Attributes& a) {
  if (to == from) return;
  const int64_t values = static_cast<int64_t>(a.kv_heads) * a.head_dim;
  const int64_t before = static_cast<int64_t>(a.heads) * a.head_dim + values;
  std::memcpy(to + before, from + before, static_cast<size_t>(values) * sizeof(T));
}

void qk_norm_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const ops::Attributes& a = call.attributes;
  const auto eps = static_cast<float>(a.eps);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> y(args[0]), qkv(args[1]), gain(args[2]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for_heads(a, [&](int64_t at, int64_t kind) {
          const T* head = qkv[r] + at;
          const float rstd = rstd_of(head, a.head_dim, eps);
          normalise_row(y[r] + at, head, gain[kind], a.head_dim, rstd);
        });
        copy_values(y[r], qkv[r], a);
      }
    };
    parallel_ranges(context.num_threads(), args[1].rows, 1, args[1].size(), rows);
  });
}

void qk_norm_input_grad_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const ops::Attributes& a = call.attributes;
  const auto eps = static_cast<float>(a.eps);
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> d_qkv(args[0]), d_y(args[1]), qkv(args[2]), gain(args[3]);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for_heads(a, [&](int64_t at, int64_t kind) {
          const T* head = qkv[r] + at;
          const float rstd = rstd_of(head, a.head_dim, eps);
          input_grad_row(d_qkv[r] + at, d_y[r] + at, head, gain[kind], a.head_dim, rstd);
        });
        copy_values(d_qkv[r], d_y[r], a);
      }
    };
    parallel_ranges(context.num_threads(), args[2].rows, 1, args[2].size(), rows);
  });
}

/// sums(2, head_dim) of rows [begin, end).
template <typename T>
void sum_piece(float* sums, const Rows<T>& d_y, const Rows<T>& qkv, int64_t begin, int64_t end,
               const ops::Attributes& a) {
  const int64_t head_dim = a.head_dim;
  std::memset(sums, 0, static_cast<size_t>(2 * head_dim) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    for_heads(a, [&](int64_t at, int64_t kind) {
      const T* head = qkv[r] + at;
      const T* slope = d_y[r] + at;
      float* to = sums + kind * head_dim;
      const Vec rstd = hn::Set(F32(), rstd_of(head, head_dim, static_cast<float>(a.eps)));
      for_vectors(0, head_dim, [&](int64_t i, auto access) {
        const Vec term = hn::Mul(access.read(head + i), rstd);
        access.write(hn::MulAdd(access.read(slope + i), term, access.read(to + i)), to + i);
      });
    });
  }
}

void qk_norm_weight_grad_pieces(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const ops::Attributes& a = call.attributes;
  const int64_t num_rows = args[2].rows;
  const int64_t num_pieces = ceil_div(num_rows, kQkNormPiece);
  auto* pieces = static_cast<float*>(call.workspace);
  const int64_t size = args[0].size();
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> d_y(args[1]), qkv(args[2]);
    const auto sum = [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t end = std::min(num_rows, (p + 1) * kQkNormPiece);
        sum_piece(pieces + p * size, d_y, qkv, p * kQkNormPiece, end, a);
      }
    };
    parallel_ranges(context.num_threads(), num_pieces, 1, args[2].size(), sum);
  });
  const Rows<float> d_gain(args[0]);
  for (int64_t kind = 0; kind < 2; ++kind) {
    for_vectors(0, a.head_dim, [&](int64_t i, auto access) {
      float* to = d_gain[kind] + i;
      Vec total = call.law == ops::Law::add ? access.read(to) : hn::Zero(F32());
      for (int64_t p = 0; p < num_pieces; ++p) {
        total = hn::Add(total, access.read(pieces + p * size + kind * a.head_dim + i));
      }
      access.write(total, to);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(qk_norm_rows);
void qk_norm(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(qk_norm_rows)(call, context);
}

HWY_EXPORT(qk_norm_input_grad_rows);
void qk_norm_input_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(qk_norm_input_grad_rows)(call, context);
}

HWY_EXPORT(qk_norm_weight_grad_pieces);
void qk_norm_weight_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(qk_norm_weight_grad_pieces)(call, context);
}

int64_t qk_norm_weight_grad_workspace(const ops::OpCall& call, const SizingInput&) {
  const int64_t num_pieces = ceil_div(call.args[2].rows, kQkNormPiece);
  return num_pieces * call.args[0].size() * static_cast<int64_t>(sizeof(float));
}

}  // namespace trireme::cpu
#endif
