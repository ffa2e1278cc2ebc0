#include "cuda/op_sizing.h"

#include "cuda/attention_rules.h"

namespace trireme::cuda {

using ops::OpKind;

int64_t OpSizing::workspace_bytes(const ops::OpCall& call) const {
  const auto& args = call.args;
  switch (call.kind) {
    case OpKind::linear:
    case OpKind::linear_input_grad:
    case OpKind::linear_weight_grad:
      return args[0].size() > 0 ? kMatmulWorkspace + kWorkspaceAlignment : 0;
    case OpKind::linear_bias_grad:
      return ColumnSlices::bytes(args[1].rows, args[1].cols);
    case OpKind::rms_norm_weight_grad:
      return NormSlices::bytes(args[1].rows, args[1].cols);
    case OpKind::rms_norm_grad:
      return NormSlices::bytes(args[2].rows, args[2].cols);
    case OpKind::qk_norm_weight_grad:
      return ColumnSlices::bytes(args[2].rows, args[0].size());
    case OpKind::embedding_weight_grad:
      return EmbeddingChunks::bytes(args[1].rows, args[1].cols);
    case OpKind::sum_squares:
      return SquarePieces::bytes(args[1].size());
    case OpKind::attention:
    case OpKind::attention_input_grad:
      return attention_workspace(AttentionCase(call), {compute_capability_, deterministic_});
    default:
      return 0;
  }
}

bool OpSizing::supports(OpKind kind, DType dtype) const {
  return static_cast<int>(kind) < ops::kNumOps && (dtype == DType::f32 || dtype == DType::bf16);
}

}  // namespace trireme::cuda
