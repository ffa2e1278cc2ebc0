// Which operations of a block become one, and that fewer buffers are needed for it.
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/op_table.h"
#include "plan/phase.h"
#include "support/rig.h"

namespace trireme::plan {
namespace {

using ops::OpKind;

model::ModelGraph model_of_one_rank() {
  model::ModelGraph model = testing::tiny_model();
  for (model::UnitGraph& kind : model.kinds) kind = model::without_boundaries(kind);
  return model;
}

/// Slots whose names hold `frozen` are not trained.
UnitPhases unit(size_t index, model::Recompute level, std::string_view frozen = {}) {
  static const model::ModelGraph model = model_of_one_rank();
  static const cpu::OpSizing sizing(1);
  PhaseRequest request;
  request.model = &model;
  request.kind = model.units[index].kind;
  for (const model::Slot& slot : model.kinds[static_cast<size_t>(request.kind)].slots) {
    request.trainable.push_back(frozen.empty() || slot.name.find(frozen) == std::string::npos);
  }
  request.level = level;
  request.compute = DType::bf16;
  request.capacity = {64, 2, 32};
  request.chunk = 64;
  request.sizing = &sizing;
  return build_phases(request);
}

UnitPhases block(model::Recompute level, std::string_view frozen = {}) {
  return unit(1, level, frozen);
}

std::vector<const Instruction*> all(const Phase& phase, OpKind op) {
  std::vector<const Instruction*> found;
  for (const Instruction& instruction : phase.instructions) {
    if (instruction.op == op) found.push_back(&instruction);
  }
  return found;
}

TEST(Fuse, ResidualsAreAddedByTheProducts) {
  const UnitPhases phases = block(model::Recompute::none);
  for (const Phase* phase : {&phases.forward, &phases.evaluate}) {
    EXPECT_TRUE(all(*phase, OpKind::add).empty()) << phase->name;
    const auto products = all(*phase, OpKind::linear);
    ASSERT_EQ(products.size(), 4u);
    for (size_t i = 0; i < products.size(); ++i) {
      const bool residual = products[i]->args[4].bound != Bound::none;
      EXPECT_EQ(residual, i == 1 || i == 3) << phase->name << ", product " << i;
    }
  }
}

TEST(Fuse, TheLossIsOnePassOverItsLogits) {
  const UnitPhases head = unit(model_of_one_rank().units.size() - 1, model::Recompute::none);
  const auto trained = all(head.backward, OpKind::xent_stats);
  ASSERT_EQ(trained.size(), 1u);
  EXPECT_NE(trained[0]->args[1].bound, Bound::none);
  EXPECT_EQ(trained[0]->args[1].offset, trained[0]->args[2].offset);
  EXPECT_TRUE(all(head.backward, OpKind::xent_grad).empty());
  const auto judged = all(head.evaluate, OpKind::xent_stats);
  ASSERT_EQ(judged.size(), 1u);
  EXPECT_EQ(judged[0]->args[1].bound, Bound::none);
}

TEST(Fuse, TheActivationComesBackWithItsGradient) {
  const UnitPhases kept = block(model::Recompute::none);
  ASSERT_EQ(all(kept.backward, OpKind::swiglu_input_grad).size(), 1u);
  EXPECT_EQ(all(kept.backward, OpKind::swiglu_input_grad)[0]->args[1].bound, Bound::none);

  for (const auto level : {model::Recompute::activation, model::Recompute::ffn,
                           model::Recompute::block}) {
    const UnitPhases phases = block(level);
    EXPECT_TRUE(all(phases.backward, OpKind::swiglu).empty());
    const auto gradients = all(phases.backward, OpKind::swiglu_input_grad);
    ASSERT_EQ(gradients.size(), 1u);
    const Operand& again = gradients[0]->args[1];
    EXPECT_EQ(again.bound, Bound::frame);
    // In the place of its own gradient, which is read for the last time.
    EXPECT_EQ(again.offset, gradients[0]->args[2].offset);
    const auto& instructions = phases.backward.instructions;
    const auto reader = std::find_if(
        instructions.begin(), instructions.end(), [&](const Instruction& instruction) {
          return instruction.op == OpKind::linear_weight_grad &&
                 instruction.args[2].name == again.name;
        });
    ASSERT_NE(reader, instructions.end());
    EXPECT_GT(&*reader, gradients[0]);
  }
}

TEST(Fuse, BothGradientsOfANormAreOfOneReading) {
  const UnitPhases phases = block(model::Recompute::activation);
  EXPECT_TRUE(all(phases.backward, OpKind::rms_norm_input_grad).empty());
  EXPECT_TRUE(all(phases.backward, OpKind::rms_norm_weight_grad).empty());
  const auto gradients = all(phases.backward, OpKind::rms_norm_grad);
  ASSERT_EQ(gradients.size(), 2u);
  for (const Instruction* gradient : gradients) {
    EXPECT_EQ(gradient->args[0].bound, Bound::gradient);
    EXPECT_EQ(gradient->law, model::LawRule::gradient);
    // Added to the residual's gradient, in place.
    EXPECT_EQ(gradient->args[6].bound, gradient->args[1].bound);
    EXPECT_EQ(gradient->args[6].offset, gradient->args[1].offset);
    EXPECT_NE(gradient->args[6].bound, Bound::none);
  }
}

TEST(Fuse, AFrozenGainHasNoGradient) {
  const UnitPhases phases = block(model::Recompute::none, "norm");
  EXPECT_TRUE(all(phases.backward, OpKind::rms_norm_grad).empty());
  EXPECT_TRUE(all(phases.backward, OpKind::rms_norm_weight_grad).empty());
  EXPECT_EQ(all(phases.backward, OpKind::rms_norm_input_grad).size(), 2u);
}

}  // namespace
}  // namespace trireme::plan
