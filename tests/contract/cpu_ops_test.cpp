// What the CPU promises beside the contract: sizing, preparation, and the work attention does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "cpu/op_matmul.h"
#include "cpu/op_table.h"

namespace trireme::cpu {
namespace {

TEST(OpSizing, SupportsEveryOperationInBothDtypes) {
  const OpSizing sizing(1);
  for (int i = 0; i < ops::kNumOps; ++i) {
    EXPECT_TRUE(sizing.supports(static_cast<ops::OpKind>(i), DType::f32));
    EXPECT_TRUE(sizing.supports(static_cast<ops::OpKind>(i), DType::bf16));
    EXPECT_FALSE(sizing.supports(static_cast<ops::OpKind>(i), DType::f16));
  }
}

ops::OpCall weight_grad(int64_t tokens, float* memory) {
  ops::OpCall call;
  call.kind = ops::OpKind::linear_weight_grad;
  call.num_args = 3;
  call.args[0] = matrix(memory, DType::f32, 96, 64);
  call.args[1] = matrix(memory, DType::f32, tokens, 96);
  call.args[2] = matrix(memory, DType::f32, tokens, 64);
  return call;
}

/// The workspace of the largest extent serves every smaller one.
TEST(OpSizing, WorkspaceOfTheLargestExtentIsEnoughForAll) {
  const OpSizing sizing(2);
  float memory[1];
  const int64_t largest = sizing.workspace_bytes(weight_grad(2048, memory));
  for (int64_t tokens = 16; tokens < 2048; tokens += 48) {
    EXPECT_LE(sizing.workspace_bytes(weight_grad(tokens, memory)), largest) << tokens;
  }
}

TEST(OpContext, PreparesAProductOnce) {
  OpContext context(1);
  const OpSizing sizing(1);
  std::vector<float> memory(96 * 64 + 32 * 160);
  ops::OpCall call = weight_grad(16, memory.data());
  std::vector<double> workspace(static_cast<size_t>(sizing.workspace_bytes(call) / 8 + 16));
  call.workspace = workspace.data();
  call.workspace_bytes = static_cast<int64_t>(workspace.size()) * 8;
  prepare(call, context);
  EXPECT_EQ(context.matmuls().size(), 1);
  run(call, context);
  run(call, context);
  EXPECT_EQ(context.matmuls().size(), 1);
  call.law = ops::Law::add;
  run(call, context);
  EXPECT_EQ(context.matmuls().size(), 2);
}

TEST(OpContext, RefusesACallWithoutItsWorkspace) {
  OpContext context(1);
  std::vector<float> x(100);
  double sum = 0;
  ops::OpCall call;
  call.kind = ops::OpKind::sum_squares;
  call.num_args = 2;
  call.args[0] = vector(&sum, DType::f64, 1);
  call.args[1] = vector(x.data(), DType::f32, 100);
  EXPECT_THROW(run(call, context), BugError);
}

/// Blocks outside the causal triangle and the window are skipped: computed pairs stay near the
/// visible ones, and the mix of long and short sequences within 7 % of exact.
TEST(AttentionPairs, FollowTheVisiblePairs) {
  const auto exact = [](int64_t n) { return n * (n + 1) / 2; };
  EXPECT_GE(attention_pairs(1, 0), 1);
  EXPECT_LE(attention_pairs(1, 0), 16);
  for (const int64_t length : {64, 65, 1000, 4096}) {
    EXPECT_GE(attention_pairs(length, 0), exact(length)) << length;
    EXPECT_LE(static_cast<double>(attention_pairs(length, 0)),
              1.02 * static_cast<double>(exact(length)) + 32.0 * static_cast<double>(length))
        << length;
  }
  const int64_t mixed = attention_pairs(4096, 0) + 8 * attention_pairs(64, 0);
  const auto visible = static_cast<double>(exact(4096) + 8 * exact(64));
  EXPECT_LE(static_cast<double>(mixed), 1.07 * visible);
  // A window of 128 keys: work grows with the length, not with its square.
  EXPECT_LE(attention_pairs(4096, 128), 4096 * (128 + 48));
  EXPECT_GE(attention_pairs(4096, 128), 4096 * 128 - 128 * 128);
}

}  // namespace
}  // namespace trireme::cpu
