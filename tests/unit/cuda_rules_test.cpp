// What a plan for GPUs assumes, where no GPU is needed to know it.
#include <gtest/gtest.h>

#include "cuda/op_sizing.h"
#include "cuda/plan_rules.h"

namespace trireme::cuda {
namespace {

constexpr StepShape kLarge{7.6e9, 28, 28, 128, 4096};
constexpr StepShape kMiddle{1.54e9, 28, 12, 128, 4096};
constexpr StepShape kSmall{0.49e9, 24, 14, 64, 4096};

TEST(PlanRules, RepeatingGradientsAreTakenWhereTheyCostLittle) {
  EXPECT_NEAR(repeat_cost(kLarge), 0.02, 0.005);
  EXPECT_NEAR(repeat_cost(kMiddle), 0.039, 0.01);
  EXPECT_GT(repeat_cost(kSmall), 0.05);
  EXPECT_TRUE(repeats_cheaply(kLarge));
  EXPECT_TRUE(repeats_cheaply(kMiddle));
  EXPECT_FALSE(repeats_cheaply(kSmall));
  StepShape longer = kLarge;
  longer.longest = 32768;  // 56 GiB of workspace
  EXPECT_FALSE(repeats_cheaply(longer));
}

/// The gradient of every score of one sequence at a time.
TEST(PlanRules, RepeatingGradientsHaveTheirWorkspace) {
  ops::OpCall call;
  call.kind = ops::OpKind::attention_input_grad;
  call.dtype = DType::bf16;
  call.attributes.heads = 28;
  call.attributes.kv_heads = 4;
  call.attributes.head_dim = 128;
  call.attributes.longest = 4096;
  call.attributes.even = true;
  call.args[2] = {nullptr, DType::bf16, 8192, 4608, 4608};
  call.args[5] = {nullptr, DType::i32, 1, 3, 3};
  const int64_t scores = int64_t{28} * 4096 * 4096 * 2;
  const int64_t fast = OpSizing(90, false).workspace_bytes(call);
  const int64_t repeating = OpSizing(90, true).workspace_bytes(call);
  EXPECT_GT(repeating, scores);
  EXPECT_LT(repeating, scores + (int64_t{256} << 20));
  EXPECT_LT(fast, int64_t{1} << 30);
}

}  // namespace
}  // namespace trireme::cuda
