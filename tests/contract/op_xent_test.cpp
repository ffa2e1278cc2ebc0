// Cross-entropy: statistics, loss and gradient over chunks and slices of the vocabulary.
#include <cmath>

#include "contract/suite.h"

namespace trireme::contract {
namespace {

Ints targets_of(const Ints& random) {
  Ints targets = random;
  for (size_t i = 0; i < targets.size(); i += 4) targets[i] = -100;
  return targets;
}

struct Slice {
  int64_t vocab;
  int64_t first_column;
};
constexpr Slice kSlices[] = {{509, 0}, {200, 0}, {309, 200}, {5000, 0}, {1, 7}};

TEST_P(Ops, XentStats) {
  for (const Slice& slice : kSlices) {
    for (const int64_t rows : {0, 1, 9}) {
      const Tensor logits = random_f32(rows, slice.vocab, 10.0);
      const Ints targets = targets_of(random_ints(rows, 509));
      CallUnderTest call(backend(), ops::OpKind::xent_stats, t());
      call.attributes().first_column = slice.first_column;
      call.output(rows, 3, DType::f32);
      call.input(logits, DType::f32, 3);
      call.input(targets);
      call.run();
      expect_close(call.read(0), xent_stats(logits, targets, slice.first_column),
                   limit(OpClass::softmax, DType::f32));
    }
  }
}

TEST_P(Ops, XentLoss) {
  for (const ops::Law law : kLaws) {
    for (const int64_t rows : {0, 1, 50}) {
      const Tensor before = random_f32(1, 2);
      const Ints targets = targets_of(random_ints(rows, 509));
      const Tensor stats = rounded(xent_stats(random_f32(rows, 509, 5.0), targets, 0), DType::f32);
      CallUnderTest call(backend(), ops::OpKind::xent_loss, t(), law);
      result(call, law, before, DType::f64);
      call.input(stats, DType::f32);
      call.input(targets);
      call.run();
      expect_close(call.read(0), expected(law, before, xent_loss(stats, targets)), 1e-14);
    }
  }
}

TEST_P(Ops, XentGrad) {
  for (const Slice& slice : kSlices) {
    for (const int64_t rows : {0, 1, 9}) {
      const Tensor logits = random_f32(rows, slice.vocab, 10.0);
      const Ints targets = targets_of(random_ints(rows, 509));
      const Tensor stats = rounded(xent_stats(logits, targets, slice.first_column), DType::f32);
      const Tensor want = xent_grad(logits, stats, targets, slice.first_column);
      CallUnderTest call(backend(), ops::OpKind::xent_grad, t());
      call.attributes().first_column = slice.first_column;
      call.output(rows, slice.vocab, t(), 1);
      call.input(logits, DType::f32);
      call.input(stats, DType::f32);
      call.input(targets);
      call.run();
      expect_close(call.read(0), want, limit(OpClass::softmax, t()));
      if (t() != DType::f32) continue;
      CallUnderTest in_place(backend(), ops::OpKind::xent_grad, t());
      in_place.attributes().first_column = slice.first_column;
      in_place.update(logits, DType::f32);
      in_place.alias(0);
      in_place.input(stats, DType::f32);
      in_place.input(targets);
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), call.bytes(0));
    }
  }
}

/// A NaN logit reaches the loss, wherever it stands.
TEST_P(Ops, XentCarriesNan) {
  for (const int64_t column : {0, 1, 300, 508}) {
    Tensor logits = random_f32(1, 509);
    logits.at(0, column) = std::nan("");
    CallUnderTest call(backend(), ops::OpKind::xent_stats, t());
    call.output(1, 3, DType::f32);
    call.input(logits, DType::f32);
    call.input(Ints{5});
    call.run();
    EXPECT_TRUE(std::isnan(call.read(0).at(1))) << column;
  }
}

}  // namespace
}  // namespace trireme::contract
