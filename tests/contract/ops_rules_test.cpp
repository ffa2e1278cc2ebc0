// The pure rules of src/ops: signatures, shape checks, costs, batch layout and step control.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "ops/batch.h"
#include "ops/control.h"
#include "ops/signature.h"

namespace trireme::ops {
namespace {

OpKind kind_at(int i) { return static_cast<OpKind>(i); }

TEST(Signatures, NamesAreUniqueAndOutputsComeFirst) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumOps; ++i) {
    EXPECT_TRUE(names.insert(name_of(kind_at(i))).second) << name_of(kind_at(i));
    const auto operands = signature(kind_at(i));
    ASSERT_FALSE(operands.empty());
    ASSERT_LE(operands.size(), static_cast<size_t>(kMaxArgs));
    EXPECT_NE(operands[0].access, Access::read) << name_of(kind_at(i));
    bool reading = false;
    for (const Operand& operand : operands) {
      EXPECT_TRUE(!reading || operand.access == Access::read) << name_of(kind_at(i));
      reading |= operand.access == Access::read;
      EXPECT_TRUE(!operand.law || operand.access == Access::write);
    }
  }
  EXPECT_THROW(signature(kind_at(kNumOps)), BugError);
}

TEST(Signatures, AliasesAreInputs) {
  for (int i = 0; i < kNumOps; ++i) {
    const auto operands = signature(kind_at(i));
    for (int output = 0; output < kMaxArgs; ++output) {
      const int input = may_alias(kind_at(i), output);
      if (input < 0) continue;
      ASSERT_LT(static_cast<size_t>(input), operands.size());
      EXPECT_EQ(operands[static_cast<size_t>(input)].access, Access::read);
      EXPECT_EQ(operands[static_cast<size_t>(output)].access, Access::write);
    }
  }
  EXPECT_EQ(may_alias(OpKind::rope, 0), 1);
  EXPECT_EQ(may_alias(OpKind::linear, 0), -1);
}

OpCall linear_call() {
  static float memory[1];
  OpCall call;
  call.kind = OpKind::linear;
  call.num_args = 3;
  call.args[0] = matrix(memory, DType::f32, 6, 4);
  call.args[1] = matrix(memory, DType::f32, 6, 8);
  call.args[2] = matrix(memory, DType::f32, 4, 8);
  return call;
}

TEST(ShapeRules, AcceptTheContractAndRefuseTheRest) {
  EXPECT_NO_THROW(check_call(linear_call()));
  const auto refused = [](auto change) {
    OpCall call = linear_call();
    change(call);
    EXPECT_THROW(check_call(call), BugError);
  };
  refused([](OpCall& c) { c.args[2].cols = 7; });
  refused([](OpCall& c) { c.args[0].rows = 5; });
  refused([](OpCall& c) { c.args[1].dtype = DType::bf16; });
  refused([](OpCall& c) { c.args[2].data = nullptr; });
  refused([](OpCall& c) { c.args[1].stride = 7; });
  refused([](OpCall& c) { c.num_args = 2; });
  refused([](OpCall& c) { c.num_args = 6; });
  refused([](OpCall& c) { c.dtype = DType::i32; });
  refused([](OpCall& c) {  // a bias of the wrong length
    c.num_args = 4;
    c.args[3] = vector(c.args[0].data, DType::f32, 5);
  });
}

TEST(ShapeRules, AttentionNeedsItsAttributes) {
  float memory[1];
  OpCall call;
  call.kind = OpKind::attention;
  call.num_args = 4;
  call.attributes.heads = 4;
  call.attributes.kv_heads = 2;
  call.attributes.head_dim = 16;
  call.attributes.attention_scale = 0.25f;
  call.args[0] = matrix(memory, DType::f32, 10, 64);
  call.args[1] = matrix(memory, DType::f32, 4, 10);
  call.args[2] = matrix(memory, DType::f32, 10, 128);
  call.args[3] = vector(memory, DType::i32, 3);
  EXPECT_NO_THROW(check_call(call));
  const auto refused = [&](auto change) {
    OpCall changed = call;
    change(changed.attributes);
    EXPECT_THROW(check_call(changed), BugError);
  };
  refused([](Attributes& a) { a.head_dim = 12; });
  refused([](Attributes& a) { a.kv_heads = 3; });
  refused([](Attributes& a) { a.kv_heads = 0; });
  refused([](Attributes& a) { a.attention_scale = 0; });
  refused([](Attributes& a) { a.window = -1; });
}

TEST(ShapeRules, MastersHaveARemainderOnlyUnderBf16) {
  float memory[1];
  OpCall call;
  call.kind = OpKind::import_master;
  call.num_args = 3;
  call.args[0] = vector(memory, DType::f32, 9);
  call.args[2] = vector(memory, DType::f32, 9);
  EXPECT_NO_THROW(check_call(call));
  call.dtype = DType::bf16;
  call.args[0].dtype = DType::bf16;
  EXPECT_NO_THROW(check_call(call));  // a frozen tensor keeps none
  call.args[1] = vector(memory, DType::i16, 9);
  EXPECT_NO_THROW(check_call(call));
  call.dtype = DType::f32;
  call.args[0].dtype = DType::f32;
  EXPECT_THROW(check_call(call), BugError);
}

TEST(ShapeRules, MomentsAreF32OrOfTheComputeType) {
  float memory[1];
  OpCall call;
  call.kind = OpKind::adamw;
  call.dtype = DType::bf16;
  call.num_args = 6;
  call.args = {vector(memory, DType::bf16, 9), TensorView{},
               vector(memory, DType::bf16, 9), vector(memory, DType::bf16, 9),
               vector(memory, DType::f32, 9),  vector(memory, DType::f64, kControlSize)};
  EXPECT_NO_THROW(check_call(call));
  call.attributes.first_element = (int64_t{1} << 32) - 9;
  EXPECT_NO_THROW(check_call(call));
  call.attributes.first_element += 1;
  EXPECT_THROW(check_call(call), BugError);
  call.attributes.first_element = 0;
  call.args[3].dtype = DType::f32;
  EXPECT_THROW(check_call(call), BugError);  // one type for both
  call.args[2].dtype = DType::f32;
  EXPECT_NO_THROW(check_call(call));
  call.dtype = DType::f32;
  call.args[0].dtype = DType::f32;
  call.args[2].dtype = call.args[3].dtype = DType::bf16;
  EXPECT_THROW(check_call(call), BugError);
}

TEST(Costs, ProductsAndAttention) {
  OpCall call = linear_call();
  EXPECT_EQ(flops(call, 0), 2.0 * 6 * 4 * 8);
  EXPECT_EQ(bytes_moved(call), 4.0 * (6 * 4 + 6 * 8 + 4 * 8));
  call.kind = OpKind::linear_weight_grad;  // d_weight(4, 8), dy(6, 4), x(6, 8)
  call.args[0] = matrix(call.args[0].data, DType::f32, 4, 8);
  call.args[1] = matrix(call.args[0].data, DType::f32, 6, 4);
  call.args[2] = matrix(call.args[0].data, DType::f32, 6, 8);
  EXPECT_EQ(flops(call, 0), 2.0 * 6 * 4 * 8);
  const double set = bytes_moved(call);
  call.law = Law::add;
  EXPECT_EQ(bytes_moved(call) - set, 4.0 * 4 * 8);

  OpCall attention;
  attention.kind = OpKind::attention;
  attention.attributes.heads = 3;
  attention.attributes.head_dim = 16;
  EXPECT_EQ(flops(attention, 10), 4.0 * 3 * 16 * 10);
  attention.kind = OpKind::attention_input_grad;
  EXPECT_EQ(flops(attention, 10), 10.0 * 3 * 16 * 10);
}

TEST(Costs, PairsWithinTheWindow) {
  for (const int64_t window : {0, 1, 3, 10, 11}) {
    for (const int64_t length : {0, 1, 3, 10}) {
      double pairs = 0;
      for (int64_t query = 0; query < length; ++query) {
        for (int64_t key = 0; key <= query; ++key) {
          pairs += window == 0 || key > query - window ? 1 : 0;
        }
      }
      EXPECT_EQ(visible_pairs(static_cast<double>(length), window), pairs) << length << window;
    }
  }
}

TEST(Costs, EmbeddingReadsOnlyItsRows) {
  float memory[1];
  OpCall call;
  call.kind = OpKind::embedding;
  call.num_args = 3;
  call.args[0] = matrix(memory, DType::f32, 10, 8);
  call.args[1] = matrix(memory, DType::f32, 100000, 8);
  call.args[2] = vector(memory, DType::i32, 10);
  EXPECT_EQ(bytes_moved(call), 2.0 * 4 * 80 + 40);
}

TEST(BatchLayout, FieldsLieSideBySide) {
  const BatchLayout layout{{.tokens = 32, .sequences = 3, .longest = 20}};
  EXPECT_EQ(layout.offset(BatchField::ids), 0);
  EXPECT_EQ(layout.offset(BatchField::cu_seqlens), 128);
  EXPECT_EQ(layout.total(), 132);
  EXPECT_EQ(BatchLayout::size(BatchField::cu_seqlens, {16, 2, 9}), 3);
  EXPECT_EQ(BatchLayout::size(BatchField::order, {16, 2, 9}), 16);
}

class StepControl : public testing::Test {
 protected:
  double& at(Control field) { return control_[index(field)]; }
  void step(double squares, double loss, double tokens, double max_norm = 1.0) {
    const double sums[] = {squares, loss, tokens};
    const double schedule[] = {0.1, 0.2, 0.3};
    step_control(sums, schedule, 3, max_norm, 0.9, 0.99, control_);
  }
  double control_[kControlSize] = {};
};

TEST_F(StepControl, AppliesAndClips) {
  step(400.0, 30.0, 10.0);
  EXPECT_EQ(at(Control::global_step), 1);
  EXPECT_EQ(at(Control::updates), 1);
  EXPECT_EQ(at(Control::pending), 1);
  EXPECT_EQ(at(Control::skip), 0);
  EXPECT_EQ(at(Control::inv_tokens), 0.1);
  EXPECT_EQ(at(Control::loss), 3.0);
  EXPECT_EQ(at(Control::trained_tokens), 10);
  EXPECT_DOUBLE_EQ(at(Control::grad_norm), 2.0);
  EXPECT_DOUBLE_EQ(at(Control::clip_coef), 1.0 / (2.0 + 1e-6));
  EXPECT_EQ(at(Control::learning_rate), 0.1);
  EXPECT_NEAR(at(Control::bias1), 0.1, 1e-15);
  EXPECT_NEAR(at(Control::bias2), 0.01, 1e-15);
}

TEST_F(StepControl, SmallNormsAreNotScaledUpAndClippingCanBeOff) {
  step(1.0, 1.0, 10.0);
  EXPECT_EQ(at(Control::clip_coef), 1.0);
  step(1e8, 1.0, 10.0, 0.0);
  EXPECT_EQ(at(Control::clip_coef), 1.0);
  EXPECT_DOUBLE_EQ(at(Control::grad_norm), 1000.0);
}

TEST_F(StepControl, NonFiniteNormSkipsAndIsReportedAsItIs) {
  step(1.0, 1.0, 1.0);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    step(bad, 1.0, 1.0);
    EXPECT_EQ(at(Control::skip), 1);
    EXPECT_EQ(at(Control::pending), 1);
    EXPECT_FALSE(std::isfinite(at(Control::grad_norm)));
    EXPECT_EQ(at(Control::updates), 1);
    EXPECT_EQ(at(Control::learning_rate), 0.2);
  }
  EXPECT_EQ(at(Control::global_step), 3);
  EXPECT_EQ(at(Control::skipped_steps), 2);
  EXPECT_EQ(at(Control::consecutive_skips), 2);
  step(1.0, 1.0, 1.0);
  EXPECT_EQ(at(Control::consecutive_skips), 0);
  EXPECT_EQ(at(Control::skipped_steps), 2);
  EXPECT_EQ(at(Control::updates), 2);
  EXPECT_EQ(at(Control::learning_rate), 0.2);
}

TEST_F(StepControl, AnEmptyStepIsCountedButNotHeldAgainstTheRun) {
  step(0.0, 0.0, 0.0);
  EXPECT_EQ(at(Control::skip), 1);
  EXPECT_EQ(at(Control::inv_tokens), 0);
  EXPECT_TRUE(std::isnan(at(Control::loss)));
  EXPECT_EQ(at(Control::skipped_steps), 1);
  EXPECT_EQ(at(Control::consecutive_skips), 0);
  EXPECT_EQ(at(Control::grad_norm), 0);
}

TEST_F(StepControl, TheLastRateRepeats) {
  for (int i = 0; i < 5; ++i) step(1.0, 1.0, 1.0);
  EXPECT_EQ(at(Control::learning_rate), 0.3);
  EXPECT_EQ(at(Control::updates), 5);
  EXPECT_DOUBLE_EQ(at(Control::bias1), 1.0 - std::pow(0.9, 5));
}

}  // namespace
}  // namespace trireme::ops
