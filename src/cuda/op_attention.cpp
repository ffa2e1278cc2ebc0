// Attention and its gradient: which kernels run a call, and in how many pieces.
#include "cuda/op_attention.h"

#include <algorithm>
#include <array>

#include "base/math.h"
#include "cuda/attention_cudnn.h"
#include "cuda/attention_kernels.h"
#include "cuda/attention_rules.h"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

AttentionPolicy policy_of(const OpContext& context) {
  return {context.compute_capability(), context.deterministic()};
}

/// cuDNN moves rows of 16 bytes.
bool is_aligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride % 8 == 0;
}

/// Arguments of either direction by meaning.
struct Views {
  TensorView qkv, out, lse, cu_seqlens, d_out, d_qkv;

  explicit Views(const ops::OpCall& call) {
    const auto& a = call.args;
    if (call.kind == ops::OpKind::attention) {
      out = a[0];
      lse = a[1];
      qkv = a[2];
      cu_seqlens = a[3];
    } else {
      d_qkv = a[0];
      d_out = a[1];
      qkv = a[2];
      out = a[3];
      lse = a[4];
      cu_seqlens = a[5];
    }
  }
  bool aligned(bool backward) const {
    return is_aligned(qkv) && is_aligned(out) &&
           (!backward || (is_aligned(d_out) && is_aligned(d_qkv)));
  }
};

AttentionPlanKey key_of(const ops::OpCall& call, const AttentionCase& c,
                        const AttentionCalls& calls, int64_t sequences, bool deterministic) {
  const Views views(call);
  AttentionPlanKey key;
  key.backward = c.backward;
  key.ragged = calls.ragged;
  key.deterministic = c.backward && deterministic;
  key.heads = c.heads;
  key.kv_heads = c.kv_heads;
  key.head_dim = c.head_dim;
  key.sequences = sequences;
  key.length = calls.length;
  key.window = c.window;
  key.scale = call.attributes.attention_scale;
  key.qkv_stride = views.qkv.stride;
  key.out_stride = views.out.stride;
  key.d_qkv_stride = views.d_qkv.stride;
  key.d_out_stride = views.d_out.stride;
  return key;
}

/// Hands out parts of a call's workspace.
class Carver {
 public:
  explicit Carver(const ops::OpCall& call)
      : at_(reinterpret_cast<uintptr_t>(call.workspace)), end_(at_ + bytes_of(call)) {}
  void* take(int64_t bytes) {
    at_ = static_cast<uintptr_t>(round_up(static_cast<int64_t>(at_), kWorkspaceAlignment));
    void* taken = reinterpret_cast<void*>(at_);
    at_ += static_cast<uintptr_t>(bytes);
    check(at_ <= end_, "attention: {} bytes of workspace are missing", at_ - end_);
    return taken;
  }
  int64_t left() const {
    const int64_t begin = round_up(static_cast<int64_t>(at_), kWorkspaceAlignment);
    return std::max<int64_t>(0, static_cast<int64_t>(end_) - begin);
  }

 private:
  static uintptr_t bytes_of(const ops::OpCall& call) {
    return static_cast<uintptr_t>(call.workspace_bytes);
  }
  uintptr_t at_;
  uintptr_t end_;
};

void* row_of(const TensorView& view, int64_t row) {
  if (!view.present()) return nullptr;
  return static_cast<std::byte*>(view.data) + row * view.stride * size_of(view.dtype);
}

/// Addresses of the cuDNN call that takes the sequences from `first` on.
AttentionOperands operands_of(const Views& views, float* statistics, const AttentionCalls& calls,
                              std::byte* arrays, const RaggedArrays& layout, int64_t i,
                              int64_t heads) {
  AttentionOperands o;
  const int64_t row = calls.ragged ? 0 : i * calls.sequences * calls.length;
  o.qkv = row_of(views.qkv, row);
  o.out = row_of(views.out, row);
  o.d_out = row_of(views.d_out, row);
  o.d_qkv = row_of(views.d_qkv, row);
  o.statistics = statistics + row * heads;
  if (!calls.ragged) return o;
  std::byte* at = arrays + i * layout.call_bytes();
  const auto next = [&](int64_t bytes) {
    std::byte* array = at;
    at += bytes;
    return array;
  };
  o.lengths = next(layout.lengths_bytes());
  o.qkv_offsets = next(layout.offsets_bytes());
  o.out_offsets = next(layout.offsets_bytes());
  o.statistics_offsets = next(layout.offsets_bytes());
  o.d_qkv_offsets = next(layout.offsets_bytes());
  o.d_out_offsets = next(layout.offsets_bytes());
  return o;
}

void run_cudnn(const ops::OpCall& call, const AttentionCase& c, OpContext& context,
               cudaStream_t stream) {
  const Views views(call);
  const AttentionCalls calls(c, policy_of(context));
  Carver workspace(call);
  auto* statistics = static_cast<float*>(workspace.take(c.tokens * c.heads * 4));
  if (c.backward) lse_to_statistics(statistics, views.lse, stream);

  const RaggedArrays layout{calls.sequences, c.backward ? kBackwardOffsets : kForwardOffsets};
  std::byte* arrays = nullptr;
  if (calls.ragged) {
    arrays = static_cast<std::byte*>(workspace.take(calls.count * layout.call_bytes()));
    const std::array<int64_t, kBackwardOffsets> strides = {
        views.qkv.stride, views.out.stride, c.heads, views.d_qkv.stride, views.d_out.stride};
    fill_ragged_arrays(arrays, layout, calls, strides, views.cu_seqlens, stream);
  }
  const int64_t left = workspace.left();
  void* rest = workspace.take(left);
  for (int64_t i = 0; i < calls.count; ++i) {
    const auto key =
        key_of(call, c, calls, calls.sequences_of(i, c.sequences), context.deterministic());
    const auto operands = operands_of(views, statistics, calls, arrays, layout, i, c.heads);
    context.attentions().run(key, operands, rest, left, stream);
  }
  if (c.backward) {
    zero_padding(views.d_qkv, views.cu_seqlens, stream);
  } else {
    zero_padding(views.out, views.cu_seqlens, stream);
    statistics_to_lse(views.lse, statistics, views.cu_seqlens, stream);
  }
}

bool by_cudnn(const ops::OpCall& call, const AttentionCase& c, const OpContext& context) {
  return !c.empty() && cudnn_computes(c, policy_of(context)) && Views(call).aligned(c.backward);
}

}  // namespace

void attention(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  const AttentionCase c(call);
  if (by_cudnn(call, c, context)) {
    run_cudnn(call, c, context, stream);
  } else {
    simple_attention(call, c, stream);
  }
}

void attention_input_grad(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  const AttentionCase c(call);
  if (by_cudnn(call, c, context)) {
    run_cudnn(call, c, context, stream);
  } else {
    auto* row_sums = c.empty() ? nullptr : static_cast<float*>(call.workspace);
    simple_attention_grad(call, c, row_sums, stream);
  }
}

void prepare_attention(const ops::OpCall& call, OpContext& context) {
  const AttentionCase c(call);
  if (!by_cudnn(call, c, context)) return;
  const AttentionCalls calls(c, policy_of(context));
  const int64_t limit =
      cudnn_bytes(c, policy_of(context), calls.sequences, calls.length, calls.ragged);
  context.attentions().prepare(key_of(call, c, calls, calls.sequences, context.deterministic()),
                               limit);
  const int64_t last = calls.sequences_of(calls.count - 1, c.sequences);
  if (last == calls.sequences) return;
  context.attentions().prepare(key_of(call, c, calls, last, context.deterministic()), limit);
}

}  // namespace trireme::cuda
