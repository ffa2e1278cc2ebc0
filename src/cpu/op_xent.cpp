// Cross-entropy over chunks of rows: statistics of the logits, loss and gradient.
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_xent.cpp"
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

/// Columns whose maximum is taken before their exponentials: they are read twice from the cache.
inline constexpr int64_t kStrip = 4096;

struct RowStats {
  float max;
  float sum;
};

template <typename T>
float strip_max(const T* logits, int64_t count) {
  const F32 f;
  Vec largest = hn::Set(f, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  // Max keeps its second operand when one is NaN: a NaN logit reaches the sum below in any case.
  for (; i + kLanes <= count; i += kLanes) largest = hn::Max(load(logits + i), largest);
  float result = max_of(largest);
  for (; i < count; ++i) result = std::max(result, widen(logits[i]));
  return result;
}

template <typename T>
float strip_sum(const T* logits, int64_t count, float max) {
  const F32 f;
  const Vec largest = hn::Set(f, max);
  Vec sums[4] = {hn::Zero(f), hn::Zero(f), hn::Zero(f), hn::Zero(f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int64_t v = 0; v < 4; ++v) {
      const Vec x = load(logits + i + v * kLanes);
      sums[v] = hn::Add(sums[v], exp_of(hn::Sub(x, largest)));
    }
  }
  for_vectors(i, count, [&](int64_t at, auto access) {
    const Vec e = exp_of(hn::Sub(access.read(logits + at), largest));
    const int64_t valid = std::min(kLanes, count - at);
    const auto mask = hn::FirstN(f, static_cast<size_t>(valid));
    sums[0] = hn::Add(sums[0], hn::IfThenElseZero(mask, e));
  });
  return sum_of(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

template <typename T>
RowStats stats_of(const T* logits, int64_t cols) {
  RowStats stats{std::numeric_limits<float>::lowest(), 0.0f};
  for (int64_t first = 0; first < cols; first += kStrip) {
    const int64_t count = std::min(kStrip, cols - first);
    const float max = std::max(stats.max, strip_max(logits + first, count));
    stats.sum = stats.sum * std::exp(stats.max - max) + strip_sum(logits + first, count, max);
    stats.max = max;
  }
  return stats;
}

template <typename T>
void stats_row(float* out, const T* logits, int32_t target, const ops::HeldVocab& held) {
  out[0] = 0.0f;
  out[1] = 1.0f;
  out[2] = 0.0f;
  if (target == -100) return;
  const RowStats row = stats_of(logits, held.count);
  out[0] = row.max;
  out[1] = row.sum;
  const int64_t column = held.index_of(target);
  if (column >= 0) out[2] = widen(logits[column]);
}

template <typename T>
void grad_row(T* out, const T* logits, const float* stats, int32_t target, int64_t cols,
              const ops::HeldVocab& held) {
  const bool skipped = target == -100;
  const int64_t first_zero = skipped ? 0 : held.count;
  std::memset(out + first_zero, 0, static_cast<size_t>(cols - first_zero) * sizeof(T));
  if (skipped) return;
  const int64_t column = held.index_of(target);
  const float target_logit = column >= 0 ? widen(logits[column]) : 0.0f;
  const F32 f;
  const Vec max = hn::Set(f, stats[0]);
  const Vec inverse = hn::Set(f, 1.0f / stats[1]);
  for_vectors(0, held.count, [&](int64_t i, auto access) {
    const Vec e = exp_of(hn::Sub(access.read(logits + i), max));
    access.write(hn::Mul(e, inverse), out + i);
  });
  if (column < 0) return;
  const float p = std::exp(target_logit - stats[0]) / stats[1];
  store_some(hn::Set(f, p - 1.0f), out + column, 1);
}

/// `body(r, logits, d_logits)` for each row, on all threads.
template <typename Body>
void for_rows(const ops::OpCall& call, OpContext& context, const TensorView& logits,
              const TensorView& d_logits, const Body& body) {
  with_element(call.dtype, [&]<typename T>(T) {
    const Rows<T> from(logits), to(d_logits);
    const auto rows = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(r, from[r], to[r]);
    };
    parallel_ranges(context.num_threads(), logits.rows, 1, logits.size(), rows);
  });
}

void xent_stats_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const Rows<float> stats(args[0]);
  const auto* targets = data_of<int32_t>(args[3]);
  const int64_t cols = args[2].cols;
  const ops::HeldVocab held = call.attributes.held_vocab(cols);
  const bool with_gradient = args[1].present();
  for_rows(call, context, args[2], args[1], [&](int64_t r, const auto* logits, auto* d_logits) {
    stats_row(stats[r], logits, targets[r], held);
    if (with_gradient) grad_row(d_logits, logits, stats[r], targets[r], cols, held);
  });
}

void xent_grad_rows(const ops::OpCall& call, OpContext& context) {
  const auto& args = call.args;
  const Rows<float> stats(args[2]);
  const auto* targets = data_of<int32_t>(args[3]);
  const int64_t cols = args[1].cols;
  const ops::HeldVocab held = call.attributes.held_vocab(cols);
  for_rows(call, context, args[1], args[0], [&](int64_t r, const auto* logits, auto* d_logits) {
    grad_row(d_logits, logits, stats[r], targets[r], cols, held);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(xent_stats_rows);
void xent_stats(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(xent_stats_rows)(call, context);
}

void xent_combine(const ops::OpCall& call, OpContext&) {
  const auto& args = call.args;
  const Rows<float> stats(args[0]), parts(args[1]);
  const auto* targets = data_of<int32_t>(args[2]);
  const int64_t tokens = args[0].rows;
  for (int64_t r = 0; r < tokens; ++r) {
    float max = std::numeric_limits<float>::lowest();
    for (int64_t part = r; part < args[1].rows; part += tokens) max = std::max(max, parts[part][0]);
    float sum = 0.0f;
    float target = 0.0f;
    for (int64_t part = r; part < args[1].rows; part += tokens) {
      sum += parts[part][1] * std::exp(parts[part][0] - max);
      target += parts[part][2];
    }
    const bool skipped = targets[r] == -100;
    stats[r][0] = skipped ? 0.0f : max;
    stats[r][1] = skipped ? 1.0f : sum;
    stats[r][2] = skipped ? 0.0f : target;
  }
}

void xent_loss(const ops::OpCall& call, OpContext&) {
  const auto& args = call.args;
  const Rows<float> stats(args[1]);
  const auto* targets = data_of<int32_t>(args[2]);
  double loss = 0;
  double num_targets = 0;
  for (int64_t r = 0; r < args[1].rows; ++r) {
    if (targets[r] == -100) continue;
    const float* row = stats[r];
    loss += std::log(static_cast<double>(row[1])) + static_cast<double>(row[0]) -
            static_cast<double>(row[2]);
    num_targets += 1;
  }
  auto* sums = data_of<double>(args[0]);
  const bool accumulate = call.law == ops::Law::add;
  sums[0] = accumulate ? sums[0] + loss : loss;
  sums[1] = accumulate ? sums[1] + num_targets : num_targets;
}

HWY_EXPORT(xent_grad_rows);
void xent_grad(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(xent_grad_rows)(call, context);
}

}  // namespace trireme::cpu
#endif
