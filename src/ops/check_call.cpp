// The shape rules: what each operation's arguments must look like.
#include <array>

#include "base/error.h"
#include "base/stochastic_rounding.h"
#include "ops/control.h"
#include "ops/signature.h"

namespace trireme::ops {

namespace {

class Checker {
 public:
  explicit Checker(const OpCall& call) : call_(call), operands_(signature(call.kind)) {}

  const TensorView& arg(int i) const { return call_.args[static_cast<size_t>(i)]; }
  DType compute() const { return call_.dtype; }
  const Attributes& attributes() const { return call_.attributes; }

  void require(bool condition, std::string_view what) const {
    check(condition, "{}: {}", name_of(call_.kind), what);
  }

  /// Presence, strides and the compute dtype.
  void operands() const {
    require(compute() == DType::f32 || compute() == DType::bf16, "compute dtype");
    check(call_.num_args <= static_cast<int>(operands_.size()), "{}: {} arguments for {} operands",
          name_of(call_.kind), call_.num_args, operands_.size());
    for (size_t i = 0; i < operands_.size(); ++i) {
      const TensorView& view = call_.args[i];
      const bool given = static_cast<int>(i) < call_.num_args;
      check((given && (view.present() || view.size() == 0)) || operands_[i].optional,
            "{}: operand {} is missing", name_of(call_.kind), operands_[i].name);
      check(view.rows >= 0 && view.cols >= 0 && (view.rows <= 1 || view.stride >= view.cols),
            "{}: operand {} is {} x {} with stride {}", name_of(call_.kind), operands_[i].name,
            view.rows, view.cols, view.stride);
    }
  }

  void shape(int i, DType dtype, int64_t rows, int64_t cols) const {
    const TensorView& view = arg(i);
    check(view.dtype == dtype && view.rows == rows && view.cols == cols,
          "{}: operand {} is {} {} x {}, expected {} {} x {}", name_of(call_.kind),
          operands_[static_cast<size_t>(i)].name, name_of(view.dtype), view.rows, view.cols,
          name_of(dtype), rows, cols);
  }
  void same(int i, int other) const {
    shape(i, arg(other).dtype, arg(other).rows, arg(other).cols);
  }
  void vector(int i, DType dtype, int64_t size) const { shape(i, dtype, 1, size); }

 private:
  const OpCall& call_;
  std::span<const Operand> operands_;
};

void check_vocab(const Checker& c, int64_t extent) {
  const Attributes& a = c.attributes();
  c.require(a.first_vocab >= 0 && a.vocab_padding >= 0 && a.vocab_padding <= extent,
            "the vocabulary held");
}

void check_embedding(const Checker& c) {
  check_vocab(c, c.arg(1).rows);
  c.shape(0, c.compute(), c.arg(0).rows, c.arg(1).cols);
  c.shape(1, c.compute(), c.arg(1).rows, c.arg(1).cols);
  c.vector(2, DType::i32, c.arg(0).rows);
}

void check_embedding_weight_grad(const Checker& c) {
  check_vocab(c, c.arg(0).rows);
  c.shape(0, DType::f32, c.arg(0).rows, c.arg(1).cols);
  c.shape(1, c.compute(), c.arg(1).rows, c.arg(1).cols);
  c.vector(2, DType::i32, c.arg(1).rows);
  c.vector(3, DType::i32, c.arg(1).rows);
}

void check_rms_norm(const Checker& c, OpKind kind) {
  if (kind == OpKind::rms_norm) {
    c.shape(0, c.compute(), c.arg(2).rows, c.arg(2).cols);
    c.vector(1, DType::f32, c.arg(2).rows);
    c.same(2, 0);
    c.vector(3, c.compute(), c.arg(2).cols);
  } else if (kind == OpKind::rms_norm_input_grad) {
    c.shape(0, c.compute(), c.arg(2).rows, c.arg(2).cols);
    c.same(1, 0);
    c.same(2, 0);
    c.vector(3, c.compute(), c.arg(2).cols);
    c.vector(4, DType::f32, c.arg(2).rows);
  } else if (kind == OpKind::rms_norm_weight_grad) {
    c.vector(0, DType::f32, c.arg(2).cols);
    c.shape(1, c.compute(), c.arg(2).rows, c.arg(2).cols);
    c.same(2, 1);
    c.vector(3, DType::f32, c.arg(2).rows);
  } else {
    c.vector(0, DType::f32, c.arg(3).cols);
    c.shape(1, c.compute(), c.arg(3).rows, c.arg(3).cols);
    c.same(2, 1);
    c.same(3, 1);
    c.vector(4, c.compute(), c.arg(3).cols);
    c.vector(5, DType::f32, c.arg(3).rows);
    if (c.arg(6).present()) c.same(6, 1);
  }
}

void check_linear(const Checker& c, OpKind kind) {
  const DType t = c.compute();
  if (kind == OpKind::linear) {
    const int64_t outputs = c.arg(2).rows;
    c.require(c.arg(0).dtype == t || c.arg(0).dtype == DType::f32, "y is T or f32");
    c.shape(0, c.arg(0).dtype, c.arg(1).rows, outputs);
    c.shape(1, t, c.arg(1).rows, c.arg(2).cols);
    c.shape(2, t, outputs, c.arg(1).cols);
    if (c.arg(3).present()) c.vector(3, t, outputs);
    if (c.arg(4).present()) c.same(4, 0);
  } else if (kind == OpKind::linear_input_grad) {
    c.shape(0, t, c.arg(1).rows, c.arg(2).cols);
    c.shape(1, t, c.arg(0).rows, c.arg(2).rows);
    c.shape(2, t, c.arg(1).cols, c.arg(0).cols);
  } else if (kind == OpKind::linear_weight_grad) {
    c.shape(0, DType::f32, c.arg(1).cols, c.arg(2).cols);
    c.shape(1, t, c.arg(2).rows, c.arg(0).rows);
    c.shape(2, t, c.arg(1).rows, c.arg(0).cols);
  } else {
    c.vector(0, DType::f32, c.arg(1).cols);
    c.shape(1, t, c.arg(1).rows, c.arg(0).cols);
  }
}

int64_t qkv_cols(const Checker& c) {
  const Attributes& a = c.attributes();
  c.require(a.kv_heads > 0 && a.heads > 0 && a.heads % a.kv_heads == 0,
            "heads is a multiple of kv_heads");
  c.require(a.head_dim > 0 && a.head_dim % 8 == 0, "head_dim is a multiple of 8");
  return (static_cast<int64_t>(a.heads) + 2 * a.kv_heads) * a.head_dim;
}

void check_rope(const Checker& c) {
  c.shape(0, c.compute(), c.arg(1).rows, qkv_cols(c));
  c.same(1, 0);
  c.shape(2, DType::f32, c.arg(2).rows, c.attributes().head_dim);
  c.vector(3, DType::i32, c.arg(1).rows);
}

void check_qk_norm(const Checker& c, OpKind kind) {
  const int64_t head_dim = c.attributes().head_dim;
  const int64_t cols = qkv_cols(c);
  const int qkv = kind == OpKind::qk_norm ? 1 : 2;
  c.shape(qkv, c.compute(), c.arg(qkv).rows, cols);
  if (kind == OpKind::qk_norm_weight_grad) {
    c.same(1, qkv);
    c.shape(0, DType::f32, 2, head_dim);
    return;
  }
  for (int i = 0; i < qkv; ++i) c.same(i, qkv);
  c.shape(qkv + 1, c.compute(), 2, head_dim);
}

void check_attention(const Checker& c, OpKind kind) {
  const bool forward = kind == OpKind::attention;
  const int qkv = 2;
  const int lse = forward ? 1 : 4;
  const int sequences = forward ? 3 : 5;
  const int64_t tokens = c.arg(qkv).rows;
  const int64_t heads = c.attributes().heads;
  const int64_t out_cols = heads * c.attributes().head_dim;
  c.require(c.attributes().attention_scale > 0, "attention_scale is positive");
  c.require(c.attributes().window >= 0 && c.attributes().longest >= 0, "window and longest");
  c.shape(qkv, c.compute(), tokens, qkv_cols(c));
  c.shape(lse, DType::f32, heads, tokens);
  c.shape(forward ? 0 : 3, c.compute(), tokens, out_cols);
  if (!forward) {
    c.same(0, qkv);
    c.shape(1, c.compute(), tokens, out_cols);
  }
  c.require(c.arg(sequences).cols >= 1, "cu_seqlens has at least one entry");
  c.vector(sequences, DType::i32, c.arg(sequences).cols);
}

void check_swiglu(const Checker& c, OpKind kind) {
  const int gate_up = kind == OpKind::swiglu ? 1 : 3;
  const int64_t rows = c.arg(gate_up).rows;
  c.require(c.arg(gate_up).cols % 2 == 0, "gate_up holds two halves");
  c.shape(gate_up, c.compute(), rows, c.arg(gate_up).cols);
  c.shape(kind == OpKind::swiglu ? 0 : 2, c.compute(), rows, c.arg(gate_up).cols / 2);
  if (kind == OpKind::swiglu) return;
  c.same(0, gate_up);
  if (c.arg(1).present()) c.same(1, 2);
}

void check_add(const Checker& c) {
  c.shape(0, c.compute(), c.arg(0).rows, c.arg(0).cols);
  c.same(1, 0);
  if (c.arg(2).present()) c.same(2, 0);
}

void check_xent(const Checker& c, OpKind kind) {
  if (kind == OpKind::xent_loss) {
    c.vector(0, DType::f64, 2);
    c.shape(1, DType::f32, c.arg(1).rows, 3);
    c.vector(2, DType::i32, c.arg(1).rows);
    return;
  }
  if (kind == OpKind::xent_combine) {
    const int64_t tokens = c.arg(0).rows;
    const int64_t parts = c.arg(1).rows;
    c.require(tokens == 0 ? parts == 0 : parts > 0 && parts % tokens == 0, "whole parts");
    c.shape(0, DType::f32, tokens, 3);
    c.shape(1, DType::f32, parts, 3);
    c.vector(2, DType::i32, tokens);
    return;
  }
  const bool is_stats = kind == OpKind::xent_stats;
  const TensorView& logits = c.arg(is_stats ? 2 : 1);
  const int gradient = is_stats ? 1 : 0;
  check_vocab(c, logits.cols);
  c.shape(is_stats ? 2 : 1, c.compute(), logits.rows, logits.cols);
  if (!is_stats || c.arg(1).present()) {
    c.shape(gradient, c.compute(), logits.rows, logits.cols);
  }
  c.shape(is_stats ? 0 : 2, DType::f32, logits.rows, 3);
  c.vector(3, DType::i32, logits.rows);
}

/// The flat planes of a master: value T and, under bf16, perhaps a remainder.
void check_planes(const Checker& c, int value, int remainder, int64_t size) {
  const bool present = c.arg(remainder).present();
  c.vector(value, c.compute(), size);
  c.require(!present || c.compute() == DType::bf16, "a remainder only under bf16");
  if (present) c.vector(remainder, DType::i16, size);
}

void check_optimizer(const Checker& c, OpKind kind) {
  const int64_t size = c.arg(0).cols;
  const int64_t first = c.attributes().first_element;
  check_planes(c, 0, 1, size);
  const int num_moments = kind == OpKind::adamw ? 2 : 0;
  for (int i = 2; i < 2 + num_moments; ++i) {
    c.vector(i, c.arg(2).dtype == c.compute() ? c.compute() : DType::f32, size);
  }
  c.vector(2 + num_moments, DType::f32, size);
  c.vector(3 + num_moments, DType::f64, kControlSize);
  c.require(first >= 0 && first <= kRoundingElements - size, "elements of a rounding stream");
}

void check_scalars(const Checker& c, OpKind kind) {
  if (kind == OpKind::sum_squares) {
    c.vector(0, DType::f64, 1);
    c.vector(1, DType::f32, c.arg(1).cols);
    return;
  }
  c.vector(0, DType::f64, kControlSize);
  if (kind == OpKind::clear_pending) return;
  c.vector(1, DType::f64, kNumSums);
  c.require(c.arg(2).cols > 0, "the schedule has an entry");
  c.vector(2, DType::f64, c.arg(2).cols);
}

void check_master(const Checker& c, OpKind kind) {
  const bool import = kind == OpKind::import_master;
  const int master = import ? 2 : 0;
  const int64_t size = c.arg(master).cols;
  c.vector(master, DType::f32, size);
  check_planes(c, import ? 0 : 1, import ? 1 : 2, size);
}

}  // namespace

void check_call(const OpCall& call) {
  const Checker c(call);
  c.operands();
  switch (call.kind) {
    case OpKind::embedding:
      return check_embedding(c);
    case OpKind::embedding_weight_grad:
      return check_embedding_weight_grad(c);
    case OpKind::rms_norm:
    case OpKind::rms_norm_input_grad:
    case OpKind::rms_norm_weight_grad:
    case OpKind::rms_norm_grad:
      return check_rms_norm(c, call.kind);
    case OpKind::qk_norm:
    case OpKind::qk_norm_input_grad:
    case OpKind::qk_norm_weight_grad:
      return check_qk_norm(c, call.kind);
    case OpKind::linear:
    case OpKind::linear_input_grad:
    case OpKind::linear_weight_grad:
    case OpKind::linear_bias_grad:
      return check_linear(c, call.kind);
    case OpKind::rope:
    case OpKind::rope_input_grad:
      return check_rope(c);
    case OpKind::attention:
    case OpKind::attention_input_grad:
      return check_attention(c, call.kind);
    case OpKind::swiglu:
    case OpKind::swiglu_input_grad:
      return check_swiglu(c, call.kind);
    case OpKind::add:
      return check_add(c);
    case OpKind::xent_stats:
    case OpKind::xent_combine:
    case OpKind::xent_loss:
    case OpKind::xent_grad:
      return check_xent(c, call.kind);
    case OpKind::sum_squares:
    case OpKind::step_control:
    case OpKind::clear_pending:
      return check_scalars(c, call.kind);
    case OpKind::adamw:
    case OpKind::sgd:
      return check_optimizer(c, call.kind);
    case OpKind::import_master:
    case OpKind::export_master:
      return check_master(c, call.kind);
    case OpKind::zero:
      return;
  }
}

}  // namespace trireme::ops
