// Attention backward: probabilities are computed again from the saved log-sum-exp, block by block.
//
// One owner adds all of a key block's dK and dV, over heads of the group and query blocks in order;
// one owner adds all of a query block's dQ, over key blocks in order. Where there are enough
// (sequence, KV head) pairs for the threads, one item does both with five products a pair of
// blocks; otherwise dK, dV and dQ are separate items, with seven. The bits are the same.
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_attention_backward.cpp"
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
struct BackwardBlocks {
  // Of the item's keys, at most the longest sequence rounded up to kBlock.
  float* keys;       // (keys, head_dim / kPer) units
  float* values;     // (keys, head_dim / kPer) units
  float* key_steps;  // (keys / kPer, head_dim) units; the same as `keys` with units of one
  float* d_keys;     // (keys, wide)
  float* d_values;   // (keys, wide)
  // Of one block of queries.
  float* queries;      // (head_dim / kPer, kBlock) units
  float* d_out;        // (head_dim / kPer, kBlock) units
  float* query_steps;  // (kBlock / kPer, wide) units
  float* d_out_steps;  // (kBlock / kPer, wide) units
  float* d_queries;    // (head_dim, kBlock), transposed
  float* lse;          // (kBlock) in units of log2; infinity beyond the last query
  float* delta;        // (kBlock): dot product of out and d_out
  // Of one pair of blocks.
  float* scores;         // (kBlock keys, kBlock): scores, then probabilities in units along queries
  float* d_scores;       // (kBlock keys, kBlock): d probabilities, then d scores likewise
  float* d_score_steps;  // (kBlock / kPer, kBlock) units along keys; d_scores with units of one
  float* scratch;        // kBlock * head_dim

  BackwardBlocks(float* base, int64_t num_keys, int64_t head_dim, int64_t wide, bool pairs) {
    const auto take = [&base](int64_t count) {
      float* taken = base;
      base += count;
      return taken;
    };
    keys = take(num_keys * head_dim);
    values = take(num_keys * head_dim);
    key_steps = pairs ? take(num_keys * head_dim) : keys;
    d_keys = take(num_keys * wide);
    d_values = take(num_keys * wide);
    queries = take(kBlock * head_dim);
    d_out = take(kBlock * head_dim);
    query_steps = take(kBlock * wide);
    d_out_steps = take(kBlock * wide);
    d_queries = take(kBlock * head_dim);
    lse = take(kBlock);
    delta = take(kBlock);
    scores = take(kBlock * kBlock);
    d_scores = take(kBlock * kBlock);
    d_score_steps = pairs ? take(kBlock * kBlock) : d_scores;
    scratch = take(kBlock * head_dim);
  }
};

/// What an item computes.
struct Wanted {
  bool d_queries;
  bool d_keys;
};

template <typename T, typename Units>
class BackwardPass {
 public:
  BackwardPass(const ops::OpCall& call, float* base, int64_t num_keys)
      : call_(call),
        head_dim_(call.attributes.head_dim),
        wide_(round_up(call.attributes.head_dim, 16)),
        window_(call.attributes.window),
        scale_(call.attributes.attention_scale),
        d_qkv_(call.args[0]),
        d_out_(call.args[1]),
        qkv_(call.args[2]),
        out_(call.args[3]),
        lse_(call.args[4]),
        blocks_(base, num_keys, head_dim_, wide_, Units::kPer == 2) {}

  /// Takes up key blocks [begin, end) of a KV head of the sequence at row `start`.
  void open(int64_t start, int64_t length, int64_t kv_head, int64_t begin, int64_t end,
            Wanted wanted) {
    start_ = start;
    length_ = length;
    kv_head_ = kv_head;
    begin_ = begin;
    end_ = end;
    wanted_ = wanted;
    const int64_t first = begin * kBlock;
    const int64_t count = std::min(length, end * kBlock) - first;
    const T* k = qkv_[start + first] + key_column();
    const T* v = qkv_[start + first] + value_column();
    pack_rows<Units>(k, qkv_.stride, count, head_dim_, blocks_.keys, units());
    pack_rows<Units>(v, qkv_.stride, count, head_dim_, blocks_.values, units());
    if (Units::kPer == 2 && wanted.d_queries) {
      pack_steps<Units>(k, qkv_.stride, count, head_dim_, blocks_.key_steps, head_dim_);
    }
    if (wanted.d_keys) {
      const auto bytes = static_cast<size_t>(count * wide_) * sizeof(float);
      std::memset(blocks_.d_keys, 0, bytes);
      std::memset(blocks_.d_values, 0, bytes);
    }
  }

  /// Adds what one block of queries of `head` gives to the open keys, and writes its dQ.
  void run(int64_t head, int64_t block) {
    const Block queries = block_at(block, length_);
    load_queries(head, queries);
    const KeyBlocks seen(queries, window_);
    for (int64_t b = std::max(seen.begin, begin_); b < std::min(seen.end, end_); ++b) {
      const Block keys = block_at(b, length_);
      const Runs runs(queries, keys, window_);
      const int64_t key = keys.first - begin_ * kBlock;  // within the open keys
      for (const Run& r : runs) score(r, key);
      for (int64_t vec = 0; vec < queries.vectors(); ++vec) {
        for (int64_t lane = vec * kQueryLanes; lane < (vec + 1) * kQueryLanes; lane += kLanes) {
          differentiate(queries, keys, runs.keys_of(vec), lane, runs.masked);
        }
      }
      for (const Run& r : runs) accumulate(r, key);
    }
    if (wanted_.d_queries) store_queries(head, queries);
  }

  /// Writes dK and dV of the open keys.
  void close() {
    if (!wanted_.d_keys) return;
    const F32 f;
    const int64_t first = begin_ * kBlock;
    const int64_t count = std::min(length_, end_ * kBlock) - first;
    for (int64_t key = 0; key < count; ++key) {
      T* d_key = d_qkv_[start_ + first + key] + key_column();
      T* d_value = d_qkv_[start_ + first + key] + value_column();
      const float* from_key = blocks_.d_keys + key * wide_;
      const float* from_value = blocks_.d_values + key * wide_;
      for_vectors(0, head_dim_, [&](int64_t i, auto access) {
        access.write(hn::Mul(access.read(from_key + i), hn::Set(f, scale_)), d_key + i);
        access.write(access.read(from_value + i), d_value + i);
      });
    }
  }

 private:
  int64_t units() const { return head_dim_ / Units::kPer; }
  int64_t key_column() const { return (call_.attributes.heads + kv_head_) * head_dim_; }
  int64_t value_column() const { return key_column() + call_.attributes.kv_heads * head_dim_; }

  void load_queries(int64_t head, const Block& queries) {
    const int64_t row = start_ + queries.first;
    const int64_t column = head * head_dim_;
    const T* q = qkv_[row] + column;
    const T* d_out = d_out_[row] + column;
    pack_lanes<Units>(q, qkv_.stride, queries.count, head_dim_, blocks_.queries, blocks_.scratch);
    pack_lanes<Units>(d_out, d_out_.stride, queries.count, head_dim_, blocks_.d_out,
                      blocks_.scratch);
    if (wanted_.d_keys) {
      load_steps(q, qkv_.stride, queries.count, blocks_.query_steps);
      load_steps(d_out, d_out_.stride, queries.count, blocks_.d_out_steps);
    }
    if (wanted_.d_queries) {
      std::memset(blocks_.d_queries, 0, static_cast<size_t>(head_dim_ * kBlock) * sizeof(float));
    }
    const float* lse = lse_[head] + row;
    for (int64_t i = 0; i < kBlock; ++i) {
      const bool valid = i < queries.count;
      blocks_.lse[i] = valid ? lse[i] * kLog2E : std::numeric_limits<float>::infinity();
      blocks_.delta[i] = valid ? dot(out_[row + i] + column, d_out_[row + i] + column) : 0.0f;
    }
  }

  /// Steps along the queries, rows beyond the last query zero up to the next whole vector.
  void load_steps(const T* from, int64_t stride, int64_t count, float* to) {
    pack_steps<Units>(from, stride, count, head_dim_, to, wide_);
    const int64_t filled = ceil_div(count, Units::kPer);
    const int64_t all = round_up(count, kQueryLanes) / Units::kPer;
    std::memset(to + filled * wide_, 0,
                static_cast<size_t>((all - filled) * wide_) * sizeof(float));
  }

  float dot(const T* a, const T* b) const {
    Vec sum = hn::Zero(F32());
    for_vectors(0, head_dim_, [&](int64_t i, auto access) {
      sum = hn::MulAdd(access.read(a + i), access.read(b + i), sum);
    });
    return sum_of(sum);
  }

  /// scores = keys · queries and d_scores = values · d_out, both (keys, queries).
  void score(const Run& r, int64_t key) {
    BlockProduct p;
    p.a_row = units();
    p.a_step = 1;
    p.b_step = kBlock;
    p.c_row = kBlock;
    p.m = r.num_keys;
    p.n = r.num_lanes();
    p.k = units();
    const int64_t from = (key + r.key) * units();
    const int64_t to = r.key * kBlock + r.lane();
    p.a = blocks_.keys + from;
    p.b = blocks_.queries + r.lane();
    p.c = blocks_.scores + to;
    Units::product(p);
    p.a = blocks_.values + from;
    p.b = blocks_.d_out + r.lane();
    p.c = blocks_.d_scores + to;
    Units::product(p);
  }

  struct Pair {
    Vec probability;
    Vec d_score;
  };

  /// From scores and d probabilities to probabilities and d scores, for the kLanes queries at
  /// `lane`. Results lie in units along the queries, in the place of what they come from.
  void differentiate(const Block& queries, const Block& keys, const Runs::Keys& met, int64_t lane,
                     bool masked) {
    const F32 f;
    constexpr bool kFast = Units::kPer == 2;
    const Vec scale = hn::Set(f, scale_ * kLog2E);
    const Vec lse = load(blocks_.lse + lane);
    const Vec delta = load(blocks_.delta + lane);
    const int64_t query = queries.first + lane;
    const auto at = [&](int64_t key) -> Pair {
      const int64_t place = key * kBlock + lane;
      Vec p = exp2_below<kFast>(hn::MulSub(load(blocks_.scores + place), scale, lse));
      if (masked && !all_visible(keys.first + key, query, window_)) {
        p = visible(p, keys.first + key, query, window_, hn::Zero(f));
      }
      return {p, hn::Mul(p, hn::Sub(load(blocks_.d_scores + place), delta))};
    };
    for (int64_t key = met.begin; key < met.end; key += 2) {
      const bool pair = key + 1 < met.end;
      const Pair first = at(key);
      const Pair second = pair ? at(key + 1) : Pair{hn::Zero(f), hn::Zero(f)};
      put(first, key, lane);
      if (pair) put(second, key + 1, lane);
      if constexpr (Units::kPer == 2) {
        store(pair_of(first.d_score, second.d_score),
              blocks_.d_score_steps + key / 2 * kBlock + lane);
      }
    }
  }

  void put(const Pair& pair, int64_t key, int64_t lane) {
    if constexpr (Units::kPer == 1) {
      store(pair.probability, blocks_.scores + key * kBlock + lane);
      store(pair.d_score, blocks_.d_scores + key * kBlock + lane);
    } else {
      const auto narrow = [](Vec v, float* row, int64_t at) {
        const auto half = hn::TruncateTo(U16(), hn::ShiftRight<16>(nearest_bits(v)));
        hn::StoreU(half, U16(), reinterpret_cast<uint16_t*>(row) + at);
      };
      narrow(pair.probability, blocks_.scores + key * kBlock, lane);
      narrow(pair.d_score, blocks_.d_scores + key * kBlock, lane);
    }
  }

  void accumulate(const Run& r, int64_t key) {
    if (wanted_.d_keys) {
      add_to_keys(r, key, blocks_.scores, blocks_.d_out_steps, blocks_.d_values);
      add_to_keys(r, key, blocks_.d_scores, blocks_.query_steps, blocks_.d_keys);
    }
    if (!wanted_.d_queries) return;
    BlockProduct p;
    p.a = blocks_.key_steps + (key + r.key) / Units::kPer * head_dim_;
    p.a_row = 1;
    p.a_step = head_dim_;
    p.b = blocks_.d_score_steps + r.key / Units::kPer * kBlock + r.lane();
    p.b_step = kBlock;
    p.c = blocks_.d_queries + r.lane();
    p.c_row = kBlock;
    p.m = head_dim_;
    p.n = r.num_lanes();
    p.k = ceil_div(r.num_keys, Units::kPer);
    p.accumulate = true;
    Units::product(p);
  }

  /// to(keys, wide) += weights(keys, queries) · steps(queries, wide).
  void add_to_keys(const Run& r, int64_t key, const float* weights, const float* steps, float* to) {
    BlockProduct p;
    p.a = weights + r.key * kBlock + r.lane() / Units::kPer;
    p.a_row = kBlock;
    p.a_step = 1;
    p.b = steps + r.lane() / Units::kPer * wide_;
    p.b_step = wide_;
    p.c = to + (key + r.key) * wide_;
    p.c_row = wide_;
    p.m = r.num_keys;
    p.n = wide_;
    p.k = r.num_lanes() / Units::kPer;
    p.accumulate = true;
    Units::product(p);
  }

  void store_queries(int64_t head, const Block& queries) {
    const F32 f;
    transpose_units(blocks_.d_queries, kBlock, head_dim_, queries.vectors() * kQueryLanes,
                    blocks_.scratch, head_dim_);
    for (int64_t q = 0; q < queries.count; ++q) {
      T* to = d_qkv_[start_ + queries.first + q] + head * head_dim_;
      const float* from = blocks_.scratch + q * head_dim_;
      for_vectors(0, head_dim_, [&](int64_t i, auto access) {
        access.write(hn::Mul(access.read(from + i), hn::Set(f, scale_)), to + i);
      });
    }
  }

  const ops::OpCall& call_;
  int64_t head_dim_;
  int64_t wide_;
  int64_t window_;
  float scale_;
  Rows<T> d_qkv_;
  Rows<const T> d_out_;
  Rows<const T> qkv_;
  Rows<const T> out_;
  Rows<const float> lse_;
  BackwardBlocks blocks_;
  int64_t start_ = 0;
  int64_t length_ = 0;
  int64_t kv_head_ = 0;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  Wanted wanted_{};
};

/// Every item of one kind.
template <typename T, typename Units>
void backward_items(const AttentionPlan& plan, const AttentionItems& items, Wanted wanted) {
  const ops::OpCall& call = *plan.call;
  const int64_t window = call.attributes.window;
  const int64_t group = call.attributes.heads / call.attributes.kv_heads;
  parallel_items(plan.num_threads, items.count(), [&](int64_t index, int thread) {
    const auto item = items.at(index);
    const int64_t start = plan.cu_seqlens[item.sequence];
    const int64_t length = items.length(item.sequence);
    const int64_t last_block = item.first_block + item.num_blocks;
    BackwardPass<T, Units> pass(call, plan.blocks + thread * plan.floats, plan.num_keys);
    if (!wanted.d_keys) {  // an item is some query blocks of one head
      const KeyBlocks first(block_at(item.first_block, length), window);
      pass.open(start, length, item.head / group, first.begin, last_block, wanted);
      for (int64_t b = item.first_block; b < last_block; ++b) pass.run(item.head, b);
      return;
    }
    // An item is some key blocks of one KV head: the queries of its whole group that see them.
    pass.open(start, length, item.head, item.first_block, last_block, wanted);
    int64_t end = num_blocks(length);
    if (window > 0) end = std::min(end, (last_block * kBlock + window - 2) / kBlock + 1);
    for (int64_t head = item.head * group; head < (item.head + 1) * group; ++head) {
      for (int64_t b = item.first_block; b < end; ++b) pass.run(head, b);
    }
    pass.close();
  });
}

template <typename T, typename Units>
void backward_all(const AttentionPlan& plan) {
  const auto& attributes = plan.call->attributes;
  const auto items = [&](int64_t heads, int64_t blocks_per_item) {
    return AttentionItems(plan.cu_seqlens, plan.num_sequences, heads, blocks_per_item, plan.prefix);
  };
  if (plan.whole) {
    backward_items<T, Units>(plan, items(attributes.kv_heads, plan.num_keys / kBlock),
                             {true, true});
  } else {
    backward_items<T, Units>(plan, items(attributes.kv_heads, kItemBlocks), {false, true});
    backward_items<T, Units>(plan, items(attributes.heads, kItemBlocks), {true, false});
  }
}

void backward_blocks(const AttentionPlan& plan) {
  if (plan.call->dtype == DType::f32) {
    backward_all<float, F32Units>(plan);
  } else if (plan.bf16_products) {
    backward_all<uint16_t, Bf16Units>(plan);
  } else {
    backward_all<uint16_t, F32Units>(plan);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(backward_blocks);
void attention_input_grad(const ops::OpCall& call, OpContext& context) {
  const AttentionPlan plan(call, context);
  HWY_DYNAMIC_DISPATCH(backward_blocks)(plan);
  zero_matrix(rows_from(call.args[0], plan.cu_seqlens[plan.num_sequences]), context);
}

}  // namespace trireme::cpu
#endif
