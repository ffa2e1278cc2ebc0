// The bodies behind op_table.h, one function an operation, for both compute dtypes. They trust
// their call: run() has checked it. What they need of workspace is said in op_sizing.h.
#pragma once

#include <cuda_runtime.h>

#include "cuda/op_table.h"

namespace trireme::cuda {

/// Launches the call's work on `stream`; returns at once.
using Body = void(const ops::OpCall& call, OpContext& context, cudaStream_t stream);

// op_embedding.cu
Body embedding;
Body embedding_weight_grad;

// op_norm.cu
Body rms_norm;

// op_norm_grad.cu
Body rms_norm_input_grad;
Body rms_norm_weight_grad;
Body rms_norm_grad;

// op_qk_norm.cu
Body qk_norm;
Body qk_norm_input_grad;
Body qk_norm_weight_grad;

// op_columns.cu
Body linear_bias_grad;

// op_matmul.cpp
Body linear;
Body linear_input_grad;
Body linear_weight_grad;

// op_rope.cu
Body rope;
Body rope_input_grad;

// op_attention.cpp
Body attention;
Body attention_input_grad;

// op_activation.cu
Body swiglu;
Body swiglu_input_grad;
Body add;

// op_xent.cu
Body xent_stats;
Body xent_combine;
Body xent_loss;
Body xent_grad;

// op_control.cu
Body sum_squares;
Body step_control;
Body clear_pending;

// op_optimizer.cu
Body adamw;
Body sgd;
Body import_master;
Body export_master;

// op_fill.cu
Body zero;

}  // namespace trireme::cuda
