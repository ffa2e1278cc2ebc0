#include "cpu/op_attention_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "cpu/kernel_attention_blocks.h"
#include "cpu/kernel_attention_items.h"
#include "cpu/kernel_view.h"

namespace trireme::cpu {

namespace {

bool is_forward(const ops::OpCall& call) { return call.kind == ops::OpKind::attention; }

const TensorView& cu_seqlens_of(const ops::OpCall& call) {
  return call.args[is_forward(call) ? 3 : 5];
}

/// Keys of the longest sequence, in whole blocks.
int64_t room_for_keys(const ops::OpCall& call) {
  const int64_t tokens = call.args[2].rows;
  const int64_t longest = call.attributes.longest;
  return round_up(longest > 0 ? std::min(longest, tokens) : tokens, kBlock);
}

/// f32 of one thread's ForwardBlocks.
int64_t forward_floats(int64_t num_keys, int64_t head_dim) {
  return num_keys * 2 * head_dim + kBlock * (3 * head_dim + kBlock + 3);
}

/// f32 of one thread's BackwardBlocks; `pairs`: products are of bf16 pairs.
int64_t backward_floats(int64_t num_keys, int64_t head_dim, bool pairs) {
  const int64_t wide = round_up(head_dim, 16);
  const int64_t of_keys = num_keys * ((pairs ? 3 : 2) * head_dim + 2 * wide);
  const int64_t of_block = kBlock * (4 * head_dim + 2 * wide + 2);
  return of_keys + of_block + (pairs ? 3 : 2) * kBlock * kBlock;
}

int64_t floats_of(const ops::OpCall& call, bool bf16_products) {
  const int64_t num_keys = room_for_keys(call);
  const int64_t head_dim = call.attributes.head_dim;
  if (is_forward(call)) return forward_floats(num_keys, head_dim);
  return backward_floats(num_keys, head_dim, call.dtype == DType::bf16 && bf16_products);
}

/// Whether items of whole (sequence, KV head) pairs finish sooner than smaller ones, which need
/// 7 products a pair of blocks instead of 5.
bool prefer_whole(const AttentionPlan& plan) {
  const auto& attributes = plan.call->attributes;
  int64_t total = 0;
  int64_t largest = 0;
  for (int64_t s = 0; s < plan.num_sequences; ++s) {
    const int64_t length = plan.cu_seqlens[s + 1] - plan.cu_seqlens[s];
    const int64_t seen =
        attributes.window > 0 ? std::min<int64_t>(length, attributes.window) : length;
    total += length * seen * attributes.kv_heads;
    largest = std::max(largest, length * seen);
  }
  return 5 * std::max(total, largest * plan.num_threads) <= 7 * total;
}

}  // namespace

AttentionPlan::AttentionPlan(const ops::OpCall& planned, const OpContext& context)
    : call(&planned),
      cu_seqlens(data_of<int32_t>(cu_seqlens_of(planned))),
      num_threads(context.num_threads()),
      bf16_products(context.bf16_products()),
      num_sequences(cu_seqlens_of(planned).cols - 1),
      num_keys(room_for_keys(planned)),
      floats(floats_of(planned, bf16_products)),
      prefix(static_cast<int64_t*>(planned.workspace)),
      blocks(reinterpret_cast<float*>(static_cast<std::byte*>(planned.workspace) +
                                      AttentionItems::prefix_bytes(num_sequences))),
      whole(prefer_whole(*this)) {
  check(cu_seqlens[0] >= 0 && cu_seqlens[num_sequences] <= planned.args[2].rows,
        "sequences of tokens {} to {} among {}", cu_seqlens[0], cu_seqlens[num_sequences],
        planned.args[2].rows);
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    check(length >= 0 && length <= num_keys, "sequence {} has {} tokens, at most {} expected", s,
          length, num_keys);
  }
}

int64_t AttentionPlan::workspace_bytes(const ops::OpCall& call, const SizingInput& input) {
  return AttentionItems::prefix_bytes(cu_seqlens_of(call).cols - 1) +
         floats_of(call, input.bf16_products) * input.num_threads *
             static_cast<int64_t>(sizeof(float));
}

int64_t attention_workspace(const ops::OpCall& call, const SizingInput& input) {
  return AttentionPlan::workspace_bytes(call, input);
}

int64_t attention_pairs(int64_t length, int64_t window) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < num_blocks(length); ++i) {
    const Block queries = block_at(i, length);
    const KeyBlocks seen(queries, window);
    for (int64_t b = seen.begin; b < seen.end; ++b) {
      for (const Run& r : Runs(queries, block_at(b, length), window)) {
        pairs += r.num_keys * r.num_lanes();
      }
    }
  }
  return pairs;
}

}  // namespace trireme::cpu
