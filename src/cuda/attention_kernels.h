// Our own kernels of attention: the arrays and transposes around cuDNN's calls, and a simple
// attention for f32, for checking, and for heads that cuDNN's kernels are not made for.
#pragma once

#include <cuda_runtime.h>

#include <array>

#include "cuda/attention_rules.h"
#include "ops/op.h"

namespace trireme::cuda {

/// Fills lengths and offsets of every call: at `arrays` lie those of each group's calls one after
/// the other, of a call first the lengths, then `num_offsets` arrays of offsets in the order of
/// `strides`.
void fill_ragged_arrays(void* arrays, const AttentionCalls& calls, int num_offsets,
                        const std::array<int64_t, kBackwardOffsets>& strides,
                        const TensorView& cu_seqlens, cudaStream_t stream);

/// lse(heads, tokens) = statistics(tokens, heads) transposed; 0 in rows of padding.
void statistics_to_lse(const TensorView& lse, const float* statistics, const TensorView& cu_seqlens,
                       cudaStream_t stream);
/// The inverse; padding is copied.
void lse_to_statistics(float* statistics, const TensorView& lse, cudaStream_t stream);

/// Zeroes the rows of f32 or bf16 beyond the last sequence.
void zero_padding(const TensorView& view, const TensorView& cu_seqlens, cudaStream_t stream);

/// Any head_dim up to 256, f32 or bf16; scores and sums in f32. Padding is zeroed.
void simple_attention(const ops::OpCall& call, const AttentionCase& c, cudaStream_t stream);
/// row_sums: (tokens, heads):f32 of workspace. The order of summation depends on lengths alone.
void simple_attention_grad(const ops::OpCall& call, const AttentionCase& c, float* row_sums,
                           cudaStream_t stream);

}  // namespace trireme::cuda
