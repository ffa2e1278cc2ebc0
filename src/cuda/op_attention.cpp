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
                        const AttentionCalls& calls, int64_t length, int64_t sequences,
                        bool deterministic) {
  const Views views(call);
  AttentionPlanKey key;
  key.backward = c.backward;
  key.ragged = calls.ragged();
  key.deterministic = c.backward && deterministic;
  key.heads = c.heads;
  key.kv_heads = c.kv_heads;
  key.head_dim = c.head_dim;
  key.sequences = sequences;
  key.length = length;
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

/// Addresses of a cuDNN call whose first sequence begins at `row`.
AttentionOperands operands_at(const Views& views, float* statistics, int64_t row, int64_t heads) {
  AttentionOperands o;
  o.qkv = row_of(views.qkv, row);
  o.out = row_of(views.out, row);
  o.d_out = row_of(views.d_out, row);
  o.d_qkv = row_of(views.d_qkv, row);
  o.statistics = statistics + row * heads;
  return o;
}

void set_arrays(AttentionOperands& o, std::byte* at, const RaggedArrays& layout) {
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
}

/// The calls of cuDNN that make up one call of attention.
class CudnnCalls {
 public:
  CudnnCalls(const ops::OpCall& call, const AttentionCase& c, OpContext& context,
             cudaStream_t stream)
      : call_(call),
        case_(c),
        context_(context),
        stream_(stream),
        views_(call),
        calls_(c, policy_of(context)),
        num_offsets_(c.backward ? kBackwardOffsets : kForwardOffsets),
        workspace_(call) {}

  void run() {
    statistics_ = static_cast<float*>(workspace_.take(case_.tokens * case_.heads * 4));
    if (case_.backward) lse_to_statistics(statistics_, views_.lse, stream_);
    std::byte* arrays = calls_.ragged() ? fill_arrays() : nullptr;
    left_ = workspace_.left();
    rest_ = workspace_.take(left_);
    for (const AttentionGroup& group : calls_.groups()) {
      const RaggedArrays layout{group.sequences, num_offsets_};
      for (int64_t i = 0; i < group.count; ++i) {
        run_one(group, i, arrays, layout);
        if (calls_.ragged()) arrays += layout.call_bytes();
      }
    }
    if (case_.backward) {
      zero_padding(views_.d_qkv, views_.cu_seqlens, stream_);
    } else {
      zero_padding(views_.out, views_.cu_seqlens, stream_);
      statistics_to_lse(views_.lse, statistics_, views_.cu_seqlens, stream_);
    }
  }

 private:
  std::byte* fill_arrays() {
    int64_t bytes = 0;
    for (const AttentionGroup& group : calls_.groups()) {
      bytes += group.count * RaggedArrays{group.sequences, num_offsets_}.call_bytes();
    }
    auto* arrays = static_cast<std::byte*>(workspace_.take(bytes));
    fill_ragged_arrays(arrays, calls_, num_offsets_,
                       {views_.qkv.stride, views_.out.stride, case_.heads, views_.d_qkv.stride,
                        views_.d_out.stride},
                       views_.cu_seqlens, stream_);
    return arrays;
  }

  void run_one(const AttentionGroup& group, int64_t i, std::byte* arrays,
               const RaggedArrays& layout) {
    const bool ragged = calls_.ragged();
    const int64_t sequences = ragged ? group.sequences : group.sequences_of(i, case_.sequences);
    const auto key =
        key_of(call_, case_, calls_, group.length, sequences, context_.deterministic());
    const int64_t row = ragged ? 0 : i * group.sequences * group.length;
    AttentionOperands operands = operands_at(views_, statistics_, row, case_.heads);
    if (ragged) set_arrays(operands, arrays, layout);
    context_.attentions().run(key, operands, rest_, left_, stream_);
  }

  const ops::OpCall& call_;
  const AttentionCase& case_;
  OpContext& context_;
  const cudaStream_t stream_;
  const Views views_;
  const AttentionCalls calls_;
  const int num_offsets_;
  Carver workspace_;
  float* statistics_ = nullptr;
  void* rest_ = nullptr;  // cuDNN's own
  int64_t left_ = 0;
};

bool by_cudnn(const ops::OpCall& call, const AttentionCase& c, const OpContext& context) {
  return !c.empty() && cudnn_computes(c, policy_of(context)) && Views(call).aligned(c.backward);
}

}  // namespace

void attention(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  const AttentionCase c(call);
  if (by_cudnn(call, c, context)) {
    CudnnCalls(call, c, context, stream).run();
  } else {
    simple_attention(call, c, stream);
  }
}

void attention_input_grad(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  const AttentionCase c(call);
  if (by_cudnn(call, c, context)) {
    CudnnCalls(call, c, context, stream).run();
  } else {
    auto* row_sums = c.empty() ? nullptr : static_cast<float*>(call.workspace);
    simple_attention_grad(call, c, row_sums, stream);
  }
}

void prepare_attention(const ops::OpCall& call, OpContext& context) {
  const AttentionCase c(call);
  if (!by_cudnn(call, c, context)) return;
  // The largest micro-batch there may be is none that comes.
  if (!c.even && !c.lengths.known()) return;
  const AttentionPolicy policy = policy_of(context);
  const AttentionCalls calls(c, policy);
  for (const AttentionGroup& group : calls.groups()) {
    const int64_t limit = cudnn_bytes(c, policy, group.sequences, group.length, calls.ragged());
    const auto ready = [&](int64_t sequences) {
      const auto key = key_of(call, c, calls, group.length, sequences, context.deterministic());
      context.attentions().prepare(key, limit);
    };
    ready(group.sequences);
    if (calls.ragged()) continue;
    const int64_t last = group.sequences_of(group.count - 1, c.sequences);
    if (last != group.sequences) ready(last);
  }
}

}  // namespace trireme::cuda
