// The bodies behind op_table.h, one function an operation, for both compute dtypes. They trust
// their call: run() has checked it. `*_workspace` is the sizing rule of the body beside it.
#pragma once

#include <cstdint>

#include "cpu/op_table.h"

namespace trireme::cpu {

/// What a sizing rule may depend on beside the call.
struct SizingInput {
  int num_threads = 1;
  bool bf16_products = true;
};

// op_embedding.cpp
void embedding(const ops::OpCall& call, OpContext& context);
void embedding_weight_grad(const ops::OpCall& call, OpContext& context);

// op_norm.cpp
void rms_norm(const ops::OpCall& call, OpContext& context);
void rms_norm_input_grad(const ops::OpCall& call, OpContext& context);
void rms_norm_weight_grad(const ops::OpCall& call, OpContext& context);
void rms_norm_grad(const ops::OpCall& call, OpContext& context);

// op_qk_norm.cpp
/// Tokens whose gradients of the gains are summed in one piece; the pieces are added in order.
inline constexpr int64_t kQkNormPiece = 32;
void qk_norm(const ops::OpCall& call, OpContext& context);
void qk_norm_input_grad(const ops::OpCall& call, OpContext& context);
void qk_norm_weight_grad(const ops::OpCall& call, OpContext& context);
int64_t qk_norm_weight_grad_workspace(const ops::OpCall& call, const SizingInput& input);

// op_matmul.cpp
void linear(const ops::OpCall& call, OpContext& context);
void linear_input_grad(const ops::OpCall& call, OpContext& context);
void linear_weight_grad(const ops::OpCall& call, OpContext& context);
int64_t matmul_workspace(const ops::OpCall& call, const SizingInput& input);
void prepare_matmul(const ops::OpCall& call, OpContext& context);

// op_reduce.cpp
/// Elements that sum_squares sums in one piece; the pieces' sums are added in order.
inline constexpr int64_t kSquaresPiece = 16384;
void linear_bias_grad(const ops::OpCall& call, OpContext& context);
void sum_squares(const ops::OpCall& call, OpContext& context);
int64_t sum_squares_workspace(const ops::OpCall& call, const SizingInput& input);

// op_rope.cpp
void rope(const ops::OpCall& call, OpContext& context);
void rope_input_grad(const ops::OpCall& call, OpContext& context);

// op_attention_forward.cpp, op_attention_backward.cpp, op_attention_plan.cpp
void attention(const ops::OpCall& call, OpContext& context);
void attention_input_grad(const ops::OpCall& call, OpContext& context);
int64_t attention_workspace(const ops::OpCall& call, const SizingInput& input);

// op_activation.cpp
void swiglu(const ops::OpCall& call, OpContext& context);
void swiglu_input_grad(const ops::OpCall& call, OpContext& context);
void add(const ops::OpCall& call, OpContext& context);

// op_xent.cpp
void xent_stats(const ops::OpCall& call, OpContext& context);
void xent_combine(const ops::OpCall& call, OpContext& context);
void xent_loss(const ops::OpCall& call, OpContext& context);
void xent_grad(const ops::OpCall& call, OpContext& context);

// op_optimizer.cpp
void step_control(const ops::OpCall& call, OpContext& context);
void clear_pending(const ops::OpCall& call, OpContext& context);
void adamw(const ops::OpCall& call, OpContext& context);
void sgd(const ops::OpCall& call, OpContext& context);
void import_master(const ops::OpCall& call, OpContext& context);
void export_master(const ops::OpCall& call, OpContext& context);

// op_fill.cpp
void zero(const ops::OpCall& call, OpContext& context);
/// Zeroes every element of the view.
void zero_matrix(const TensorView& view, OpContext& context);
/// The two conversions of whole matrices that stand in for bf16 products: dense f32 rows.
void widen_matrix(const TensorView& from, float* to, OpContext& context);
void narrow_matrix(const float* from, const TensorView& to, bool accumulate, OpContext& context);

}  // namespace trireme::cpu
