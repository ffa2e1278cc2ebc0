// Matrix products and the bias gradient.
#include "contract/suite.h"

namespace trireme::contract {
namespace {

struct Shape {
  int64_t tokens, inputs, outputs;
};
constexpr Shape kShapes[] = {{0, 16, 8},  {1, 16, 8},    {5, 33, 50},  {33, 128, 509},
                             {64, 64, 1}, {128, 1, 192}, {17, 48, 48}, {48, 200, 100},
                             {64, 128, 256}};

TEST_P(Ops, Linear) {
  for (const Shape& s : kShapes) {
    for (const bool with_bias : {false, true}) {
      for (const DType output : {t(), DType::f32}) {
        const Tensor x = random(s.tokens, s.inputs);
        const Tensor weight = random(s.outputs, s.inputs);
        const Tensor bias = with_bias ? random(1, s.outputs) : Tensor();
        CallUnderTest call(backend(), ops::OpKind::linear, t());
        call.output(s.tokens, s.outputs, output, s.outputs % 8 == 0 ? 8 : 3);
        call.input(x, t(), 8);
        call.input(weight, t());
        if (with_bias) {
          call.input(bias, t());
        } else {
          call.absent();
        }
        call.run();
        expect_close(call.read(0), linear(x, weight, bias), limit(OpClass::product, output));
      }
    }
  }
}

TEST_P(Ops, LinearWithResidual) {
  for (const Shape& s : kShapes) {
    for (const bool with_bias : {false, true}) {
      for (const DType output : {t(), DType::f32}) {
        const Tensor x = random(s.tokens, s.inputs);
        const Tensor weight = random(s.outputs, s.inputs);
        const Tensor bias = with_bias ? random(1, s.outputs) : Tensor();
        const Tensor residual = random(s.tokens, s.outputs, 5.0);
        const int64_t extra = s.outputs % 8 == 0 ? 8 : 2;
        CallUnderTest call(backend(), ops::OpKind::linear, t());
        call.output(s.tokens, s.outputs, output, extra);
        call.input(x, t());
        call.input(weight, t());
        if (with_bias) {
          call.input(bias, t());
        } else {
          call.absent();
        }
        call.input(residual, output, 2 * extra);
        call.run();
        expect_close(call.read(0), plus(residual, linear(x, weight, bias)),
                     (output == DType::bf16 ? 2 : 1) * limit(OpClass::product, output));
      }
    }
  }
}

TEST_P(Ops, LinearInputGrad) {
  for (const ops::Law law : kLaws) {
    for (const Shape& s : kShapes) {
      const Tensor before = random(s.tokens, s.inputs);
      const Tensor dy = random(s.tokens, s.outputs);
      const Tensor weight = random(s.outputs, s.inputs);
      CallUnderTest call(backend(), ops::OpKind::linear_input_grad, t(), law);
      result(call, law, before, t());
      call.input(dy, t(), 2);
      call.input(weight, t());
      call.run();
      expect_close(call.read(0), expected(law, before, linear_input_grad(dy, weight)),
                   limit(OpClass::product, t()));
    }
  }
}

TEST_P(Ops, LinearWeightGrad) {
  for (const ops::Law law : kLaws) {
    for (const Shape& s : kShapes) {
      const Tensor before = random_f32(s.outputs, s.inputs);
      const Tensor dy = random(s.tokens, s.outputs);
      const Tensor x = random(s.tokens, s.inputs);
      CallUnderTest call(backend(), ops::OpKind::linear_weight_grad, t(), law);
      result(call, law, before, DType::f32);
      call.input(dy, t(), 1);
      call.input(x, t(), 4);
      call.run();
      expect_close(call.read(0), expected(law, before, linear_weight_grad(dy, x)),
                   limit(OpClass::product, DType::f32));
    }
  }
}

TEST_P(Ops, LinearBiasGrad) {
  for (const ops::Law law : kLaws) {
    for (const int64_t rows : {0, 1, 63, 64, 65, 400}) {
      for (const int64_t cols : {1, 16, 100, 509}) {
        const Tensor before = random_f32(1, cols);
        const Tensor dy = random(rows, cols);
        CallUnderTest call(backend(), ops::OpKind::linear_bias_grad, t(), law);
        result(call, law, before, DType::f32);
        call.input(dy, t(), 3);
        call.run();
        expect_close(call.read(0), expected(law, before, linear_bias_grad(dy)),
                     limit(OpClass::reduction, DType::f32));
      }
    }
  }
}

/// Small addends reach a large accumulated weight gradient: 256 micro-batches of 1 + 2^-7 each.
TEST_P(Ops, WeightGradAccumulatesInF32) {
  Tensor total(8, 16);
  Tensor dy(1, 8, 1.0);
  Tensor x(1, 16, 1.0078125);
  for (int micro = 0; micro < 256; ++micro) {
    CallUnderTest call(backend(), ops::OpKind::linear_weight_grad, t(), ops::Law::add);
    call.update(total, DType::f32);
    call.input(dy, t());
    call.input(x, t());
    call.run();
    total = call.read(0);
  }
  expect_close(total, Tensor(8, 16, 258.0), 0.0);
}

}  // namespace
}  // namespace trireme::contract
