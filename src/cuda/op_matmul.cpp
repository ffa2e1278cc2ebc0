// The three matrix products of a linear layer. Row-major operands are cuBLASLt's column-major ones
// transposed: C = A B becomes C^T = B^T A^T, so that A and B change places and nothing is copied.
#include "cuda/op_matmul.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "cuda/fill.h"
#include "cuda/handle.h"
#include "cuda/matmul.h"
#include "cuda/matmul_simple.h"
#include "cuda/op_bodies.h"

namespace trireme::cuda {

namespace {

uintptr_t address(const TensorView& view) { return reinterpret_cast<uintptr_t>(view.data); }

int64_t stride_of(const TensorView& view) { return std::max(view.stride, view.cols); }

/// A call as a product.
struct MatmulCall {
  MatmulProblem problem;
  MatmulOperands operands;
  bool bias_first = false;  // the result starts as the bias, to which the product is added
  bool own_kernel = false;  // a sum of nothing, or what cuBLASLt cannot add, or not in one rounding

  explicit MatmulCall(const ops::OpCall& call) {
    const TensorView& d = call.args[0];
    const TensorView& left = call.args[1];   // (rows of d, k), or transposed
    const TensorView& right = call.args[2];  // (k, cols of d), or transposed
    const bool weight_grad = call.kind == ops::OpKind::linear_weight_grad;
    problem.input = call.dtype;
    problem.output = d.dtype;
    problem.a_transposed = call.kind == ops::OpKind::linear;
    problem.b_transposed = weight_grad;
    problem.tokens_are_k = weight_grad;
    problem.m = d.cols;
    problem.n = d.rows;
    problem.k = weight_grad ? left.rows : left.cols;
    problem.lda = stride_of(right);
    problem.ldb = stride_of(left);
    problem.ldd = stride_of(d);
    const bool forward = call.kind == ops::OpKind::linear;
    const TensorView& c = forward ? call.args[4] : d;
    problem.accumulate = forward ? c.present() : call.law == ops::Law::add;
    problem.ldc = problem.accumulate ? stride_of(c) : problem.ldd;
    const uintptr_t addresses = address(d) | address(left) | address(right) | address(c) | 16;
    problem.alignment = static_cast<int32_t>(addresses & (~addresses + 1));
    operands = {right.data, left.data, nullptr, c.data, d.data};
    own_kernel = problem.k == 0;
    if (forward && call.args[3].present()) set_bias(call.args[3]);
    // A bias of a bf16 result of odd shape cuBLASLt adds after a first rounding.
    own_kernel |= problem.bias && d.dtype == DType::bf16 && !whole_packs();
  }

  bool empty() const { return problem.m == 0 || problem.n == 0; }
  bool by_library() const { return !empty() && !own_kernel; }

 private:
  /// Whether all rows are whole packs of 16 bytes at aligned addresses.
  bool whole_packs() const {
    const auto& p = problem;
    return p.alignment == 16 && (p.m | p.k | p.lda | p.ldb | p.ldc | p.ldd) % 8 == 0;
  }
  void set_bias(const TensorView& bias) {
    // The epilogue takes a bias of the result's type at an aligned address.
    const bool fits = bias.dtype == problem.output && address(bias) % 16 == 0;
    own_kernel |= !fits && problem.accumulate;
    bias_first = !fits && !own_kernel;
    problem.bias = !bias_first;
    operands.bias = bias.data;
    if (!bias_first) return;
    problem.accumulate = true;
    problem.ldc = problem.ldd;
    operands.c = operands.d;
  }
};

/// The largest aligned part of the call's workspace.
MatmulWorkspace workspace_of(const ops::OpCall& call) {
  const auto begin = reinterpret_cast<uintptr_t>(call.workspace);
  const auto aligned =
      static_cast<uintptr_t>(round_up(static_cast<int64_t>(begin), kWorkspaceAlignment));
  const auto left = call.workspace_bytes - static_cast<int64_t>(aligned - begin);
  return {reinterpret_cast<void*>(aligned), std::max<int64_t>(0, left)};
}

void matmul(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  const MatmulCall m(call);
  if (m.empty()) return;
  if (m.bias_first) spread_bias(call.args[0], call.args[3], stream);
  if (m.own_kernel) return simple_matmul(m.problem, m.operands, stream);
  context.matmuls().run(m.problem, m.operands, workspace_of(call), stream);
}

}  // namespace

void linear(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  matmul(call, context, stream);
}
void linear_input_grad(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  matmul(call, context, stream);
}
void linear_weight_grad(const ops::OpCall& call, OpContext& context, cudaStream_t stream) {
  matmul(call, context, stream);
}

void prepare_matmul(const ops::OpCall& call, OpContext& context) {
  const MatmulCall m(call);
  if (m.by_library()) context.matmuls().prepare(m.problem);
}

void tune_matmul(const ops::OpCall& call, OpContext& context) {
  const MatmulCall m(call);
  if (!m.by_library() || context.matmuls().has_choice(m.problem)) return;
  const StreamHandle stream(0);
  // Zeros would run faster than real values and mislead.
  random_fill(call.args[1], 1.0f, stream.get());
  random_fill(call.args[2], 0.02f, stream.get());
  context.matmuls().tune(m.problem, m.operands, workspace_of(call), stream.get());
}

}  // namespace trireme::cuda
