// The operations in double, as naive loops that follow the words of ops/op.h: the oracle of the op
// suite. Gradients are checked against finite differences of the forward functions
// (reference_test.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "contract/tensor.h"
#include "ops/op.h"

namespace trireme::contract {

using Ints = std::vector<int32_t>;

/// All `extent` entries of a vocabulary.
inline ops::HeldVocab whole_vocab(int64_t extent) { return {0, extent}; }

Tensor embedding(const Tensor& table, const Ints& ids, const ops::HeldVocab& held);
/// Of a table of `extent` rows.
Tensor embedding_weight_grad(int64_t extent, const Tensor& d_out, const Ints& ids,
                             const ops::HeldVocab& held);

struct Normalised {
  Tensor y;
  Tensor rstd;  // (1, tokens)
};
Normalised rms_norm(const Tensor& x, const Tensor& gain, double eps);
Tensor rms_norm_input_grad(const Tensor& dy, const Tensor& x, const Tensor& gain,
                           const Tensor& rstd);
Tensor rms_norm_weight_grad(const Tensor& dy, const Tensor& x, const Tensor& rstd);

/// bias may be empty.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
Tensor linear_input_grad(const Tensor& dy, const Tensor& weight);
Tensor linear_weight_grad(const Tensor& dy, const Tensor& x);
Tensor linear_bias_grad(const Tensor& dy);

/// How attention cuts a row of qkv.
struct Heads {
  int32_t heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 8;
  int64_t qkv_cols() const {
    return (static_cast<int64_t>(heads) + 2 * static_cast<int64_t>(kv_heads)) * head_dim;
  }
  int64_t out_cols() const { return static_cast<int64_t>(heads) * head_dim; }
};

Tensor rope(const Tensor& qkv, const Tensor& table, const Ints& positions, const Heads& heads);
Tensor rope_input_grad(const Tensor& d_out, const Tensor& table, const Ints& positions,
                       const Heads& heads);

/// gain(2, head_dim): of query heads, of key heads.
Tensor qk_norm(const Tensor& qkv, const Tensor& gain, const Heads& heads, double eps);
Tensor qk_norm_input_grad(const Tensor& d_y, const Tensor& qkv, const Tensor& gain,
                          const Heads& heads, double eps);
Tensor qk_norm_weight_grad(const Tensor& d_y, const Tensor& qkv, const Heads& heads, double eps);

struct Attended {
  Tensor out;
  Tensor lse;  // (heads, tokens)
};
Attended attention(const Tensor& qkv, const Ints& cu_seqlens, const Heads& heads, int64_t window,
                   double scale);
Tensor attention_input_grad(const Tensor& d_out, const Tensor& qkv, const Ints& cu_seqlens,
                            const Heads& heads, int64_t window, double scale);

Tensor swiglu(const Tensor& gate_up);
Tensor swiglu_input_grad(const Tensor& d_out, const Tensor& gate_up);

Tensor xent_stats(const Tensor& logits, const Ints& targets, const ops::HeldVocab& held);
Tensor xent_combine(const Tensor& parts, const Ints& targets);
/// (1, 2): loss sum and number of targets.
Tensor xent_loss(const Tensor& stats, const Ints& targets);
Tensor xent_grad(const Tensor& logits, const Tensor& stats, const Ints& targets,
                 const ops::HeldVocab& held);

struct AdamState {
  Tensor master, m, v;
};
struct AdamSettings {
  double learning_rate, beta1, beta2, eps, weight_decay, grad_scale, bias1, bias2;
};
AdamState adamw(AdamState state, const Tensor& grad, const AdamSettings& settings);

}  // namespace trireme::contract
