// Cross-entropy: statistics, loss and gradient over chunks and slices of the vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>

#include "contract/suite.h"

namespace trireme::contract {
namespace {

Ints targets_of(const Ints& random) {
  Ints targets = random;
  for (size_t i = 0; i < targets.size(); i += 4) targets[i] = -100;
  return targets;
}

/// The columns of one rank.
struct Slice {
  int64_t vocab;
  int64_t first;
  int64_t padding;
  ops::HeldVocab held() const { return {first, vocab - padding}; }
  void set(ops::Attributes& attributes) const {
    attributes.first_vocab = first;
    attributes.vocab_padding = padding;
  }
  /// Whatever stands in the padding is not read.
  Tensor with_bad_padding(Tensor logits) const {
    for (int64_t r = 0; r < logits.rows; ++r) {
      for (int64_t c = vocab - padding; c < vocab; ++c) logits.at(r, c) = std::nan("");
    }
    return logits;
  }
};
constexpr Slice kSlices[] = {{509, 0, 0}, {200, 0, 0},   {309, 200, 0}, {5000, 0, 0},
                             {1, 7, 0},   {256, 256, 3}, {512, 0, 3},   {16, 512, 16}};

TEST_P(Ops, XentStats) {
  for (const Slice& slice : kSlices) {
    for (const int64_t rows : {0, 1, 9}) {
      const Tensor logits = slice.with_bad_padding(random(rows, slice.vocab, 10.0));
      const Ints targets = targets_of(random_ints(rows, 509));
      CallUnderTest call(backend(), ops::OpKind::xent_stats, t());
      slice.set(call.attributes());
      call.output(rows, 3, DType::f32);
      call.absent();
      call.input(logits, t(), 3);
      call.input(targets);
      call.run();
      const double allowed = slice.held().count > 0 ? limit(OpClass::softmax, DType::f32) : 0.0;
      expect_close(call.read(0), xent_stats(logits, targets, slice.held()), allowed);
    }
  }
}

TEST_P(Ops, XentCombine) {
  for (const int64_t num_parts : {1, 2, 5}) {
    for (const int64_t rows : {0, 1, 9, 700}) {
      const Ints targets = targets_of(random_ints(rows, 509));
      Tensor parts = random_f32(num_parts * rows, 3, 10.0);
      for (int64_t r = 0; r < parts.rows; ++r) parts.at(r, 1) = std::abs(parts.at(r, 1));
      CallUnderTest call(backend(), ops::OpKind::xent_combine, t());
      call.output(rows, 3, DType::f32);
      call.input(parts, DType::f32);
      call.input(targets);
      call.run();
      const Tensor got = call.read(0);
      expect_close(got, xent_combine(parts, targets), limit(OpClass::softmax, DType::f32));
      for (int64_t r = 0; r < rows; r += 4) {  // the rows that are skipped
        EXPECT_EQ(std::vector<double>(got.values.begin() + 3 * r, got.values.begin() + 3 * r + 3),
                  (std::vector<double>{0, 1, 0}));
      }
    }
  }
}

/// Statistics of three ranks, the last of which holds padding alone, combined: the gradients of
/// their columns are those of the whole vocabulary.
TEST_P(Ops, XentOverSeveralRanks) {
  constexpr Slice kRanks[] = {{300, 0, 0}, {300, 300, 91}, {300, 600, 300}};
  constexpr int64_t kRows = 40;
  const Tensor logits = random(kRows, 509, 10.0);
  const Ints targets = targets_of(random_ints(kRows, 509));
  const auto columns_of = [](const Tensor& from, const Slice& rank) {
    Tensor columns(kRows, rank.vocab);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < rank.held().count; ++c) columns.at(r, c) = from.at(r, rank.first + c);
    }
    return columns;
  };
  Tensor parts(3 * kRows, 3);
  for (int64_t rank = 0; rank < 3; ++rank) {
    CallUnderTest call(backend(), ops::OpKind::xent_stats, t());
    kRanks[rank].set(call.attributes());
    call.output(kRows, 3, DType::f32);
    call.absent();
    call.input(kRanks[rank].with_bad_padding(columns_of(logits, kRanks[rank])), t());
    call.input(targets);
    call.run();
    const Tensor stats = call.read(0);
    std::copy(stats.values.begin(), stats.values.end(), parts.values.begin() + 3 * kRows * rank);
  }
  CallUnderTest combine(backend(), ops::OpKind::xent_combine, t());
  combine.output(kRows, 3, DType::f32);
  combine.input(parts, DType::f32);
  combine.input(targets);
  combine.run();
  const Tensor stats = combine.read(0);
  const Tensor whole = xent_stats(logits, targets, whole_vocab(509));
  expect_close(stats, whole, limit(OpClass::softmax, DType::f32));
  const Tensor d_logits = xent_grad(logits, whole, targets, whole_vocab(509));
  for (const Slice& rank : kRanks) {
    CallUnderTest call(backend(), ops::OpKind::xent_grad, t());
    rank.set(call.attributes());
    call.output(kRows, rank.vocab, t());
    call.input(rank.with_bad_padding(columns_of(logits, rank)), t());
    call.input(stats, DType::f32);
    call.input(targets);
    call.run();
    expect_close(call.read(0), columns_of(d_logits, rank), limit(OpClass::softmax, t()));
  }
}

TEST_P(Ops, XentLoss) {
  for (const ops::Law law : kLaws) {
    for (const int64_t rows : {0, 1, 50}) {
      const Tensor before = random_f32(1, 2);
      const Ints targets = targets_of(random_ints(rows, 509));
      const Tensor logits = random_f32(rows, 509, 5.0);
      const Tensor stats = rounded(xent_stats(logits, targets, whole_vocab(509)), DType::f32);
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
      const Tensor logits = slice.with_bad_padding(random(rows, slice.vocab, 10.0));
      const Ints targets = targets_of(random_ints(rows, 509));
      const Tensor stats = rounded(xent_stats(logits, targets, slice.held()), DType::f32);
      const Tensor want = xent_grad(logits, stats, targets, slice.held());
      CallUnderTest call(backend(), ops::OpKind::xent_grad, t());
      slice.set(call.attributes());
      call.output(rows, slice.vocab, t(), 1);
      call.input(logits, t());
      call.input(stats, DType::f32);
      call.input(targets);
      call.run();
      expect_close(call.read(0), want, limit(OpClass::softmax, t()));
      CallUnderTest in_place(backend(), ops::OpKind::xent_grad, t());
      slice.set(in_place.attributes());
      in_place.update(logits, t());
      in_place.alias(0);
      in_place.input(stats, DType::f32);
      in_place.input(targets);
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), call.bytes(0));
    }
  }
}

/// Statistics and gradient in one pass, also in place, and of more columns than any block keeps.
TEST_P(Ops, XentStatsWithGradient) {
  constexpr Slice kWhole[] = {{509, 0, 0}, {5000, 0, 0}, {512, 0, 3}, {151936, 0, 0}};
  for (const Slice& slice : kWhole) {
    for (const int64_t rows : {0, 1, 9}) {
      const Tensor logits = slice.with_bad_padding(random(rows, slice.vocab, 10.0));
      const Ints targets = targets_of(random_ints(rows, 509));
      const Tensor stats = xent_stats(logits, targets, slice.held());
      const Tensor want = xent_grad(logits, stats, targets, slice.held());
      CallUnderTest call(backend(), ops::OpKind::xent_stats, t());
      slice.set(call.attributes());
      call.output(rows, 3, DType::f32);
      call.output(rows, slice.vocab, t());
      call.input(logits, t());
      call.input(targets);
      call.run();
      expect_close(call.read(0), stats, limit(OpClass::softmax, DType::f32));
      expect_close(call.read(1), want, limit(OpClass::softmax, t()));
      CallUnderTest in_place(backend(), ops::OpKind::xent_stats, t());
      slice.set(in_place.attributes());
      in_place.output(rows, 3, DType::f32);
      in_place.update(logits, t());
      in_place.alias(1);
      in_place.input(targets);
      in_place.run();
      EXPECT_EQ(in_place.bytes(0), call.bytes(0));
      EXPECT_EQ(in_place.bytes(1), call.bytes(1));
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
    call.absent();
    call.input(logits, t());
    call.input(Ints{5});
    call.run();
    EXPECT_TRUE(std::isnan(call.read(0).at(1))) << column;
  }
}

}  // namespace
}  // namespace trireme::contract
