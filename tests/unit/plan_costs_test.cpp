#include <gtest/gtest.h>

#include "plan/work_costs.h"
#include "support/null_plan.h"

namespace trireme::plan {
namespace {

TEST(WorkCosts, AreThoseOfTheProductsAndTheAttention) {
  const model::ModelGraph model = model::build_model(testing::qwen2_7b());
  const model::ModelConfig& c = model.config;
  const ops::Extent extent{4096, 2, 2048};
  const std::vector<WorkCosts> costs = work_costs(model, extent, {});
  ASSERT_EQ(costs.size(), 30U);
  const auto tokens = static_cast<double>(extent.tokens);
  const double products = 2 * tokens * static_cast<double>(c.hidden_size) *
                          static_cast<double>(c.qkv_size() + c.q_size() + 3 * c.intermediate_size);
  const double attention = 4.0 * static_cast<double>(c.q_size()) * tokens * (2048 + 1) / 2;
  const WorkCosts& block = costs[1];
  EXPECT_NEAR(block.forward / (products + attention), 1, 1e-3);
  EXPECT_NEAR(block.input_gradient / (products + 2.5 * attention), 1, 1e-3);
  EXPECT_NEAR(block.weight_gradient / products, 1, 1e-3);
  EXPECT_EQ(costs[2].forward, block.forward);
  // Logits and both of their gradients; the loss is not a product.
  const double logits =
      2 * tokens * static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size);
  EXPECT_NEAR(costs[29].input_gradient / (3 * logits), 1, 1e-2);
  EXPECT_EQ(costs[29].forward, 0);
  EXPECT_LT(costs[0].total(), 1e-3 * block.total());
}

TEST(WorkCosts, RecomputationIsPaidForInBackward) {
  const model::ModelGraph model = model::build_model(testing::qwen2_7b());
  const std::vector<WorkCosts> costs =
      work_costs(model, {4096, 1, 4096}, {model::Recompute::block, model::Recompute::none});
  const double again = costs[1].input_gradient - costs[2].input_gradient;
  EXPECT_GT(again, 0.5 * costs[1].forward);  // all but what nobody reads again
  EXPECT_LE(again, costs[1].forward);
  EXPECT_EQ(costs[1].weight_gradient, costs[2].weight_gradient);
  EXPECT_EQ(costs[2].input_gradient, costs[3].input_gradient);
}

/// Of a window of 256 keys: those of the first 256 queries, then 256 each.
TEST(WorkCosts, AttentionWithinAWindow) {
  model::ModelConfig c = testing::qwen2_7b();
  const ops::Extent extent{4096, 2, 2048};
  const double all = work_costs(model::build_model(c), extent)[1].forward;
  c.sliding_window = 256;
  const double near = work_costs(model::build_model(c), extent)[1].forward;
  const double unseen = 2048 * 2049 / 2.0 - (256 * 257 / 2.0 + 256 * (2048 - 256.0));
  EXPECT_NEAR((all - near) / (4.0 * static_cast<double>(c.q_size()) * 2 * unseen), 1, 1e-9);
}

TEST(WorkCosts, NothingIsPaidForWhatIsFrozen) {
  model::ModelGraph model = model::build_model(testing::qwen2_7b());
  for (model::Parameter& parameter : model.parameters) {
    parameter.trainable = parameter.name.find("layers.3.") != std::string::npos;
  }
  const std::vector<WorkCosts> costs = work_costs(model, {64, 1, 64}, {});
  EXPECT_EQ(costs[3].input_gradient + costs[3].weight_gradient, 0);  // block.2
  EXPECT_GT(costs[4].weight_gradient, 0);
  EXPECT_EQ(costs[5].weight_gradient, 0);
  EXPECT_GT(costs[5].input_gradient, 0);
}

}  // namespace
}  // namespace trireme::plan
