// Attention forward: for a block of queries of one head, an online softmax over blocks of keys.
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernel_attention-inl.h"
#include "cpu/kernel_attention_items.h"
#include "cpu/kernel_parallel.h"
#include "cpu/kernel_view.h"
#include "cpu/op_attention_plan.h"
#include "cpu/op_bodies.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// One thread's memory, carved from AttentionPlan::floats floats of the workspace.
struct ForwardBlocks {
  // Of the item's keys, at most the longest sequence rounded up to kBlock.
  float* keys;    // (keys, head_dim / kPer) units
  float* values;  // (keys / kPer, head_dim) units
  // Of one block of queries.
  float* queries;  // (head_dim / kPer, kBlock) units
  float* scores;   // (kBlock keys, kBlock): scores, then probabilities in units along the keys
  float* out;      // (head_dim, kBlock), transposed
  float* scratch;  // kBlock * head_dim
  float* max;      // (kBlock): largest score so far, in units of log2
  float* sum;      // (kBlock)
  float* rescale;  // (kBlock)

  ForwardBlocks(float* base, int64_t num_keys, int64_t head_dim) {
    const auto take = [&base](int64_t count) {
      float* taken = base;
      base += count;
      return taken;
    };
    keys = take(num_keys * head_dim);
    values = take(num_keys * head_dim);
    queries = take(kBlock * head_dim);
    scores = take(kBlock * kBlock);
    out = take(kBlock * head_dim);
    scratch = take(kBlock * head_dim);
    max = take(kBlock);
    sum = take(kBlock);
    rescale = take(kBlock);
  }
};

template <typename T, typename Units>
class ForwardPass {
 public:
  ForwardPass(const ops::OpCall& call, const ForwardBlocks& blocks)
      : call_(call),
        qkv_(call.args[2]),
        blocks_(blocks),
        head_dim_(call.attributes.head_dim),
        window_(call.attributes.window),
        scale_(call.attributes.attention_scale * kLog2E) {}

  /// Takes up key blocks [begin, end) as `head` of the sequence at row `start` sees them.
  void open(int64_t start, int64_t length, int64_t head, int64_t begin, int64_t end) {
    const auto& attributes = call_.attributes;
    start_ = start;
    length_ = length;
    head_ = head;
    begin_ = begin;
    const int64_t kv_head = head / (attributes.heads / attributes.kv_heads);
    const int64_t first = begin * kBlock;
    const int64_t count = std::min(length, end * kBlock) - first;
    const T* k = qkv_[start + first] + (attributes.heads + kv_head) * head_dim_;
    const T* v = k + attributes.kv_heads * head_dim_;
    pack_rows<Units>(k, qkv_.stride, count, head_dim_, blocks_.keys, head_dim_ / Units::kPer);
    pack_steps<Units>(v, qkv_.stride, count, head_dim_, blocks_.values, head_dim_);
  }

  /// Computes one block of queries, all of whose visible keys are open.
  void run(int64_t block) {
    const Block queries = block_at(block, length_);
    const T* q = qkv_[start_ + queries.first] + head_ * head_dim_;
    pack_lanes<Units>(q, qkv_.stride, queries.count, head_dim_, blocks_.queries, blocks_.scratch);
    reset(queries);
    const KeyBlocks seen(queries, window_);
    for (int64_t b = seen.begin; b < seen.end; ++b) {
      const Block keys = block_at(b, length_);
      const Runs runs(queries, keys, window_);
      const int64_t key = keys.first - begin_ * kBlock;  // within the open keys
      for (const Run& r : runs) score(r, key);
      for (int64_t vec = 0; vec < queries.vectors(); ++vec) {
        for (int64_t lane = vec * kQueryLanes; lane < (vec + 1) * kQueryLanes; lane += kLanes) {
          soften(queries, keys, runs.keys_of(vec), lane, runs.masked);
        }
      }
      for (const Run& r : runs) accumulate(r, key);
    }
    finish(start_ + queries.first, queries);
  }

 private:
  void reset(const Block& queries) {
    const F32 f;
    for (int64_t d = 0; d < head_dim_; ++d) {
      std::memset(blocks_.out + d * kBlock, 0,
                  static_cast<size_t>(queries.vectors() * kQueryLanes) * sizeof(float));
    }
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) {
      store(hn::Set(f, -std::numeric_limits<float>::infinity()), blocks_.max + lane);
      store(hn::Zero(f), blocks_.sum + lane);
    }
  }

  /// scores(keys, queries) = keys · queries.
  void score(const Run& r, int64_t key) {
    BlockProduct p;
    p.a = blocks_.keys + (key + r.key) * head_dim_ / Units::kPer;
    p.a_row = head_dim_ / Units::kPer;
    p.a_step = 1;
    p.b = blocks_.queries + r.lane();
    p.b_step = kBlock;
    p.c = blocks_.scores + r.key * kBlock + r.lane();
    p.c_row = kBlock;
    p.m = r.num_keys;
    p.n = r.num_lanes();
    p.k = head_dim_ / Units::kPer;
    Units::product(p);
  }

  /// Online softmax of the kLanes queries at `lane`: scores become probabilities, older output is
  /// scaled to the new maximum.
  void soften(const Block& queries, const Block& keys, const Runs::Keys& met, int64_t lane,
              bool masked) {
    const F32 f;
    if (met.begin == met.end) return;
    float* column = blocks_.scores + lane;
    const int64_t query = queries.first + lane;
    if (masked) mask(column, keys.first, met, query);
    const Vec scale = hn::Set(f, scale_);
    const Vec minus_infinity = hn::Set(f, -std::numeric_limits<float>::infinity());
    const Vec old_max = load(blocks_.max + lane);
    Vec max = hn::Max(old_max, hn::Mul(largest(column, met), scale));
    store(max, blocks_.max + lane);
    max = hn::IfThenElse(hn::Eq(max, minus_infinity), hn::Zero(f), max);
    const Vec rescale = exp2_below(hn::Sub(old_max, max));
    const Vec sum = exponentiate(column, met, scale, max);
    store(hn::MulAdd(load(blocks_.sum + lane), rescale, sum), blocks_.sum + lane);
    if (!hn::AllTrue(f, hn::Eq(rescale, hn::Set(f, 1.0f)))) {
      for (int64_t d = 0; d < head_dim_; ++d) {
        float* out = blocks_.out + d * kBlock + lane;
        store(hn::Mul(load(out), rescale), out);
      }
    }
  }

  void mask(float* column, int64_t first_key, const Runs::Keys& met, int64_t query) {
    const Vec minus_infinity = hn::Set(F32(), -std::numeric_limits<float>::infinity());
    for (int64_t key = met.begin; key < met.end; ++key) {
      if (all_visible(first_key + key, query, window_)) continue;
      float* score = column + key * kBlock;
      store(visible(load(score), first_key + key, query, window_, minus_infinity), score);
    }
  }

  static Vec largest(const float* column, const Runs::Keys& met) {
    Vec a = load(column + met.begin * kBlock);
    Vec b = a;
    int64_t key = met.begin;
    for (; key + 2 <= met.end; key += 2) {
      a = hn::Max(a, load(column + key * kBlock));
      b = hn::Max(b, load(column + (key + 1) * kBlock));
    }
    if (key < met.end) a = hn::Max(a, load(column + key * kBlock));
    return hn::Max(a, b);
  }

  /// Probabilities in place, in units along the keys; returns their sum over the keys.
  static Vec exponentiate(float* column, const Runs::Keys& met, Vec scale, Vec max) {
    const F32 f;
    constexpr bool kFast = Units::kPer == 2;
    const auto probability = [&](int64_t key) {
      return exp2_below<kFast>(hn::MulSub(load(column + key * kBlock), scale, max));
    };
    Vec even = hn::Zero(f);
    Vec odd = hn::Zero(f);
    for (int64_t key = met.begin; key < met.end; key += 2) {
      const bool pair = key + 1 < met.end;
      const Vec p0 = probability(key);
      const Vec p1 = pair ? probability(key + 1) : hn::Zero(f);
      even = hn::Add(even, p0);
      odd = hn::Add(odd, p1);
      if constexpr (Units::kPer == 1) {
        store(p0, column + key * kBlock);
        if (pair) store(p1, column + (key + 1) * kBlock);
      } else {
        store(pair_of(p0, p1), column + key / 2 * kBlock);
      }
    }
    return hn::Add(even, odd);
  }

  /// out(head_dim, queries) += values^T · probabilities.
  void accumulate(const Run& r, int64_t key) {
    BlockProduct p;
    p.a = blocks_.values + (key + r.key) / Units::kPer * head_dim_;
    p.a_row = 1;
    p.a_step = head_dim_;
    p.b = blocks_.scores + r.key / Units::kPer * kBlock + r.lane();
    p.b_step = kBlock;
    p.c = blocks_.out + r.lane();
    p.c_row = kBlock;
    p.m = head_dim_;
    p.n = r.num_lanes();
    p.k = ceil_div(r.num_keys, Units::kPer);
    p.accumulate = true;
    Units::product(p);
  }

  void finish(int64_t row, const Block& queries) {
    const F32 f;
    const Vec ln2 = hn::Set(f, 0.6931471805599453f);
    const Rows<float> lse(call_.args[1]);
    const Rows<T> out(call_.args[0]);
    for (int64_t lane = 0; lane < queries.vectors() * kQueryLanes; lane += kLanes) {
      const Vec sum = load(blocks_.sum + lane);
      store(hn::MulAdd(load(blocks_.max + lane), ln2, hn::Log(f, sum)), blocks_.rescale + lane);
      const Vec inverse = hn::Div(hn::Set(f, 1.0f), sum);
      for (int64_t d = 0; d < head_dim_; ++d) {
        float* value = blocks_.out + d * kBlock + lane;
        store(hn::Mul(load(value), inverse), value);
      }
    }
    std::memcpy(lse[head_] + row, blocks_.rescale,
                static_cast<size_t>(queries.count) * sizeof(float));
    transpose_units(blocks_.out, kBlock, head_dim_, queries.vectors() * kQueryLanes,
                    blocks_.scratch, head_dim_);
    for (int64_t q = 0; q < queries.count; ++q) {
      T* to = out[row + q] + head_ * head_dim_;
      const float* from = blocks_.scratch + q * head_dim_;
      for_vectors(0, head_dim_,
                  [&](int64_t i, auto access) { access.write(access.read(from + i), to + i); });
    }
  }

  const ops::OpCall& call_;
  Rows<const T> qkv_;
  ForwardBlocks blocks_;
  int64_t head_dim_;
  int64_t window_;
  float scale_;
  int64_t start_ = 0;
  int64_t length_ = 0;
  int64_t head_ = 0;
  int64_t begin_ = 0;
};

template <typename T, typename Units>
void forward_items(const AttentionPlan& plan) {
  const ops::OpCall& call = *plan.call;
  const AttentionItems items(plan.cu_seqlens, plan.num_sequences, call.attributes.heads,
                             kItemBlocks, plan.prefix);
  parallel_items(plan.num_threads, items.count(), [&](int64_t index, int thread) {
    const auto item = items.at(index);
    const int64_t length = items.length(item.sequence);
    const int64_t last_block = item.first_block + item.num_blocks;
    const KeyBlocks first(block_at(item.first_block, length), call.attributes.window);
    ForwardPass<T, Units> pass(call, ForwardBlocks(plan.blocks + thread * plan.floats,
                                                   plan.num_keys, call.attributes.head_dim));
    pass.open(plan.cu_seqlens[item.sequence], length, item.head, first.begin, last_block);
    for (int64_t b = item.first_block; b < last_block; ++b) pass.run(b);
  });
}

void forward_blocks(const AttentionPlan& plan) {
  if (plan.call->dtype == DType::f32) {
    forward_items<float, F32Units>(plan);
  } else if (plan.bf16_products) {
    forward_items<uint16_t, Bf16Units>(plan);
  } else {
    forward_items<uint16_t, F32Units>(plan);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(forward_blocks);
void attention(const ops::OpCall& call, OpContext& context) {
  const AttentionPlan plan(call, context);
  HWY_DYNAMIC_DISPATCH(forward_blocks)(plan);
  const int64_t padding = plan.cu_seqlens[plan.num_sequences];
  zero_matrix(rows_from(call.args[0], padding), context);
  zero_matrix(columns_from(call.args[1], padding), context);
}

}  // namespace trireme::cpu
#endif
