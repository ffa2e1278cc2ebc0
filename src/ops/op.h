// The operations a step is made of: what each computes, and the plain-data call that runs one.
//
// Conventions
//   * A call is plain data. Backends are tables of bodies, one row per (operation, compute dtype).
//   * Arguments come in the order of the operation's signature (signature.h): outputs first.
//   * "T" is the compute dtype of the call (f32 or bf16). Statistics are f32, gradients of
//     parameters f32, sums f64, token data i32.
//   * A rank may hold a part of the vocabulary: entries from `first_vocab` on, of which the last
//     `vocab_padding` are none. Ids and targets are global; an entry is held when it is real and
//     this rank's.
//   * `tokens` rows are padded; a padding row has id -1, target -100 and belongs to no sequence.
//     Operations that create rows (embedding, attention, its gradient, xent_grad) write zeros
//     there; all others only keep it finite.
//   * Write law: an output marked `law` is overwritten (set) or added to (add), as the call says.
//     With zero rows `set` writes zeros, `add` does nothing, and no library is called.
//   * Bodies are deterministic: no atomics, and one order of summation for one shape, whatever the
//     number of threads.
//   * Nothing is allocated during a call but from `workspace`.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/tensor_view.h"
#include "ops/batch.h"

namespace trireme::ops {

enum class OpKind : uint8_t {
  // out(tokens, hidden):T = table(vocab, hidden):T rows of ids(tokens):i32; an id that is not held
  // (-1 is none) gives a zero row.
  embedding,
  // d_table(vocab, hidden):f32 law += d_out(tokens, hidden):T. order(tokens):i32 lists the real
  // tokens sorted by (id, position), then -1; rows of one held id are summed in that order, tokens
  // of other ids are passed over.
  // Args d_table, d_out, ids, order.
  embedding_weight_grad,

  // y = x * rstd * gain, rstd(tokens):f32 = 1 / sqrt(mean(x^2) + eps), computed in f32, then
  // rounded to T once (f32: exact Llama order: gain * (x * rstd)).
  // Args y:T, rstd:f32, x:T, gain(1, hidden):T.
  rms_norm,
  // dx:T law = rstd * (dy*gain - x * rstd^2 * mean(dy*gain*x)), sums in f32.
  // Args dx, dy, x, gain, rstd.
  rms_norm_input_grad,
  // d_gain(1, hidden):f32 law = sum over tokens of dy * x * rstd. Args d_gain, dy, x, rstd.
  rms_norm_weight_grad,
  // Both of one reading: d_gain:f32 law, and dx:T = before:T (optional, may be dx itself) + the
  // input's gradient, which is set. dx may be dy. Args d_gain, dx, dy, x, gain, rstd, before.
  rms_norm_grad,

  // RMS norm of every query and key head, before the rotation: of each row of qkv(tokens,
  // (heads + 2 kv_heads) * head_dim):T the first `heads` heads are normalised with row 0 of
  // gain(2, head_dim):T, the next kv_heads with row 1, as rms_norm does over head_dim elements;
  // values are copied. y may be qkv itself. Args y, qkv, gain.
  qk_norm,
  // d_qkv:T by the derivative of each head's norm, which is computed from qkv again; those of
  // values are copied. d_qkv may be d_y itself. Args d_qkv, d_y, qkv, gain.
  qk_norm_input_grad,
  // d_gain(2, head_dim):f32 law = sums over tokens and over the heads of a row of
  // d_y * head * rstd. Args d_gain, d_y, qkv.
  qk_norm_weight_grad,

  // y(tokens, out):T|f32 = x(tokens, in):T · weight(out, in):T ^T + bias(1, out):T (optional)
  // + residual (as y, optional, elsewhere). y may be f32 under bf16 (logits). Sums in f32; a bf16
  // product may be rounded before the residual is added. Args y, x, weight, bias,
  // residual.
  linear,
  // dx(tokens, in):T law = dy(tokens, out):T · weight(out, in):T.
  linear_input_grad,
  // d_weight(out, in):f32 law = dy(tokens, out):T ^T · x(tokens, in):T.
  linear_weight_grad,
  // d_bias(1, out):f32 law = column sums of dy(tokens, out):T.
  linear_bias_grad,

  // Rotary embedding, half-split: qkv(tokens, (heads + 2 kv_heads) * head_dim):T; the first
  // heads + kv_heads heads are rotated, values copied. table(max_position, head_dim):f32 holds
  // head_dim/2 cosines then head_dim/2 sines, already scaled. out may be qkv itself.
  // Args out, qkv, table, positions(tokens):i32.
  rope,
  // The transposed rotation; d_qkv_in may be d_qkv_out itself. Args d_in, d_out, table, positions.
  rope_input_grad,

  // Causal attention within each sequence of cu_seqlens(sequences + 1):i32 (optionally within a
  // window), grouped KV heads, scores scaled by attention_scale. Never a full score matrix.
  // Args out(tokens, heads*head_dim):T, lse(heads, tokens):f32 (natural log of the sum of
  // exponentials of scaled scores), qkv:T, cu_seqlens.
  attention,
  // Args d_qkv:T (set), d_out:T, qkv:T, out:T, lse, cu_seqlens.
  attention_input_grad,

  // out(tokens, ffn):T = silu(gate) * up, of gate_up(tokens, 2*ffn):T = [gate | up] a row.
  swiglu,
  // Writes swiglu's own result again where `out` is present, with the same bits. out may be d_out
  // itself, d_gate_up may be gate_up. Args d_gate_up:T, out:T (optional), d_out:T, gate_up:T.
  swiglu_input_grad,

  // out:T law = a (+ b when present). One operand and `add` accumulates: out += a. out may be a.
  add,

  // stats(tokens, 3):f32 = (max, sum of exp(logit - max), logit of the target or 0) over the held
  // columns of logits(tokens, vocab):T, (lowest finite, 0, 0) where none is held; target -100
  // skips the row (stats 0, 1, 0). With d_logits(tokens, vocab):T also what xent_grad makes of
  // them,
  // in the same pass, where the held columns are the whole vocabulary; d_logits may be logits.
  // Args stats, d_logits, logits, targets(tokens):i32.
  xent_stats,
  // stats(tokens, 3):f32 over all columns, from those over the columns of each of n ranks,
  // parts(n * tokens, 3):f32, rank after rank: the max of the maxima, each sum times
  // exp(its max - max) added in rank order, and the sum of the target logits; target -100 skips
  // the row (stats 0, 1, 0). Args stats, parts, targets.
  xent_combine,
  // sums(1, 2):f64 law = (sum over tokens of log(sum) + max - target logit, number of targets
  // other than -100). Args sums, stats, targets.
  xent_loss,
  // d_logits(tokens, vocab):T = exp(logit - max) / sum - [column is target] with the stats of the
  // whole vocabulary; zero rows for -100, zero columns where none is held. d_logits may be logits.
  // Args d_logits, logits, stats, targets.
  xent_grad,

  // sum(1, 1):f64 law = sum of squares of x(1, n):f32, each square and the sum in f64.
  sum_squares,
  // Reads sums(1, 3):f64 = (sum of squares, loss sum, trained tokens) over the world and
  // schedule(1, n):f64 (learning rate by number of unskipped steps), writes the control block
  // (control.h). Args control(1, kControlSize):f64, sums, schedule.
  step_control,
  // control.pending = 0. Args control.
  clear_pending,
  // AdamW on a flat range of n elements, predicated on pending && !skip. master = value (f32), or
  // value (bf16) joined with remainder (i16), or, without a remainder, the bf16 value itself.
  // Gradient g = grad * inv_tokens * clip. m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2;
  // master -= lr * (m / bias1) / (sqrt(v / bias2) + eps) after master *= 1 - lr * weight_decay
  // (torch.optim.AdamW), all in f32. A master or moment kept as bf16 is then rounded stochastically
  // (base/stochastic_rounding.h), with the bits of (rounding_stream, control.updates,
  // first_element + i); first_element + n is at most 2^32.
  // Args value:T, remainder:i16 (bf16 only, optional), m, v: both f32 or both T, grad:f32, control.
  adamw,
  // master -= lr * (g + weight_decay * master); predicated and rounded likewise.
  // Args value:T, remainder:i16 (bf16 only, optional), grad:f32, control.
  sgd,

  // value:T (+ remainder:i16 when T is bf16) = split of master(1, n):f32. Without a remainder (a
  // frozen tensor, and state kept as bf16) the value is the master rounded to nearest, and the
  // master that value.
  // Args value, remainder, master.
  import_master,
  // The inverse. Args master, value, remainder.
  export_master,
  // out = 0. Args out (any dtype).
  zero,
};
inline constexpr int kNumOps = static_cast<int>(OpKind::zero) + 1;

enum class Law : uint8_t { set, add };

/// The real vocabulary entries of a rank.
struct HeldVocab {
  int64_t first = 0;  // global index
  int64_t count = 0;
  /// Position of a global id among them; -1: not held.
  constexpr int64_t index_of(int64_t id) const {
    return id >= first && id < first + count ? id - first : -1;
  }
};

/// Everything an operation may need beside its operands. Unused fields keep their defaults.
struct Attributes {
  int32_t heads = 0;     // query heads held by this rank
  int32_t kv_heads = 0;  // key/value heads held by this rank
  int32_t head_dim = 0;
  int32_t window = 0;      // attention: keys within [i - window + 1, i]; 0 = all
  int32_t longest = 0;     // attention: upper bound of the lengths in cu_seqlens
  bool even = false;       // attention: every sequence has exactly `longest` tokens
  LengthCounts lengths{};  // attention: of the sequences in cu_seqlens
  float attention_scale = 0;
  int64_t first_vocab = 0;      // embedding, xent: global index of this rank's first entry
  int64_t vocab_padding = 0;    // embedding, xent: how many of its last entries are none
  double eps = 0;               // rms_norm, qk_norm, adamw
  double beta1 = 0, beta2 = 0;  // adamw, step_control
  double weight_decay = 0;
  double max_grad_norm = 0;      // step_control; 0 = no clipping
  uint64_t rounding_stream = 0;  // adamw, sgd: of the tensor
  int64_t first_element = 0;     // adamw, sgd: which of the stream's elements is the call's first

  /// Of a table or logits with `extent` entries.
  constexpr HeldVocab held_vocab(int64_t extent) const {
    return {first_vocab, extent - vocab_padding};
  }
};

inline constexpr int kMaxArgs = 8;

/// One call. Plain data: copied into queues, never owns.
struct OpCall {
  OpKind kind{};
  DType dtype = DType::f32;  // compute dtype T
  Law law = Law::set;
  int32_t num_args = 0;
  std::array<TensorView, kMaxArgs> args{};  // signature order
  Attributes attributes{};
  void* workspace = nullptr;    // 64-byte aligned
  int64_t workspace_bytes = 0;  // at least what OpSizing said
};

/// Workspace rules of a backend; a pure function of shape and thread count, known at plan time.
class OpSizing {
 public:
  virtual ~OpSizing() = default;
  /// Bytes of workspace for `call` at its largest extent; data pointers in it are not read.
  virtual int64_t workspace_bytes(const OpCall& call) const = 0;
  /// Whether the backend has a body for (kind, dtype).
  virtual bool supports(OpKind kind, DType dtype) const = 0;
};

std::string_view name_of(OpKind kind);

}  // namespace trireme::ops
