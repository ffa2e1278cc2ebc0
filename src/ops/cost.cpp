// What a call costs: the numbers the simulator and the reports rest on.
#include <algorithm>

#include "ops/signature.h"

namespace trireme::ops {

namespace {

/// Floating-point operations per element of the largest operand of a memory-bound operation; a
/// division, square root or exponential counts as one.
double flops_per_element(OpKind kind) {
  switch (kind) {
    case OpKind::rms_norm:
    case OpKind::qk_norm:
    case OpKind::swiglu:
    case OpKind::xent_grad:
      return 4;
    case OpKind::rms_norm_input_grad:
      return 8;
    case OpKind::qk_norm_input_grad:
      return 10;
    case OpKind::rms_norm_grad:
      return 11;
    case OpKind::qk_norm_weight_grad:
      return 5;
    case OpKind::rms_norm_weight_grad:
    case OpKind::rope:
    case OpKind::rope_input_grad:
      return 3;
    case OpKind::swiglu_input_grad:
      return 6;
    case OpKind::adamw:
      return 14;
    case OpKind::sgd:
      return 5;
    case OpKind::sum_squares:
    case OpKind::xent_combine:
      return 2;
    case OpKind::linear_bias_grad:
    case OpKind::embedding_weight_grad:
    case OpKind::add:
      return 1;
    default:
      return 0;
  }
}

/// The operand whose size the count is multiplied by.
int counted_operand(OpKind kind) {
  switch (kind) {
    case OpKind::linear_bias_grad:
    case OpKind::embedding_weight_grad:
    case OpKind::rms_norm_weight_grad:
    case OpKind::rms_norm_grad:
    case OpKind::qk_norm_weight_grad:
    case OpKind::xent_combine:
    case OpKind::sum_squares:
    case OpKind::swiglu:
      return 1;
    default:
      return 0;
  }
}

double bytes_of(const TensorView& view) {
  return view.present() || view.size() == 0
             ? static_cast<double>(view.size()) * static_cast<double>(size_of(view.dtype))
             : 0.0;
}

}  // namespace

double visible_pairs(double length, int64_t window) {
  const double unseen = window > 0 ? std::max(0.0, length - static_cast<double>(window)) : 0.0;
  return (length * (length + 1) - unseen * (unseen + 1)) / 2;
}

double flops(const OpCall& call, double pairs) {
  const auto& args = call.args;
  const double head_flops =
      2.0 * call.attributes.heads * static_cast<double>(call.attributes.head_dim) * pairs;
  switch (call.kind) {
    case OpKind::linear:  // x, weight
      return 2.0 * static_cast<double>(args[1].size()) * static_cast<double>(args[2].rows);
    case OpKind::linear_input_grad:  // dy, weight
      return 2.0 * static_cast<double>(args[1].size()) * static_cast<double>(args[2].cols);
    case OpKind::linear_weight_grad:  // dy, x
      return 2.0 * static_cast<double>(args[1].size()) * static_cast<double>(args[2].cols);
    case OpKind::attention:
      return 2.0 * head_flops;
    case OpKind::attention_input_grad:
      return 5.0 * head_flops;
    case OpKind::xent_stats:  // d_logits where wanted, logits
      return (args[1].present() ? 3.0 + flops_per_element(OpKind::xent_grad) : 3.0) *
             static_cast<double>(args[2].size());
    default: {
      const auto counted = static_cast<size_t>(counted_operand(call.kind));
      return flops_per_element(call.kind) * static_cast<double>(args[counted].size());
    }
  }
}

double bytes_moved(const OpCall& call) {
  if (call.kind == OpKind::embedding) {  // only the rows that are read
    return 2.0 * bytes_of(call.args[0]) + bytes_of(call.args[2]);
  }
  double total = 0;
  const auto operands = signature(call.kind);
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool twice =
        operands[i].access == Access::update || (operands[i].law && call.law == Law::add);
    total += bytes_of(call.args[i]) * (twice ? 2.0 : 1.0);
  }
  if (call.kind == OpKind::embedding_weight_grad && call.law == Law::add) {
    total -= 2.0 * bytes_of(call.args[0]);  // only the rows that are touched, at most one a token
    const double row = static_cast<double>(call.args[0].cols) * 4.0;
    total += 2.0 * row * static_cast<double>(call.args[1].rows);
  }
  return total;
}

}  // namespace trireme::ops
