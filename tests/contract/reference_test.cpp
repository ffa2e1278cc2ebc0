// The oracle's gradients against finite differences of the oracle's forward functions, in double.
#include "contract/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace trireme::contract {
namespace {

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

/// Compares `gradient` with central differences of `loss` with respect to `x`, element by element.
void expect_gradient(Tensor x, const Tensor& gradient,
                     const std::function<double(const Tensor&)>& loss) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(x.size(), gradient.size());
  double largest = 0;
  for (const double g : gradient.values) largest = std::max(largest, std::abs(g));
  ASSERT_GT(largest, 1e-3);
  for (int64_t i = 0; i < x.size(); ++i) {
    const double kept = x.at(i);
    x.at(i) = kept + kStep;
    const double above = loss(x);
    x.at(i) = kept - kStep;
    const double below = loss(x);
    x.at(i) = kept;
    ASSERT_NEAR((above - below) / (2 * kStep), gradient.at(i), 1e-7 * largest) << "element " << i;
  }
}

class Reference : public testing::Test {
 protected:
  Tensor random(int64_t rows, int64_t cols) { return random_tensor(generator_, rows, cols); }
  std::mt19937 generator_{7};
};

TEST_F(Reference, EmbeddingWeightGrad) {
  const Ints ids = {3, -1, 0, 3, 4, 3};
  const Tensor table = random(5, 4);
  const Tensor upstream = random(6, 4);
  for (const ops::HeldVocab& held : {whole_vocab(5), ops::HeldVocab{3, 1}}) {
    expect_gradient(table, embedding_weight_grad(5, upstream, ids, held),
                    [&](const Tensor& t) { return dot(embedding(t, ids, held), upstream); });
  }
}

TEST_F(Reference, RmsNormGrads) {
  const Tensor x = random(5, 9);
  const Tensor gain = random(1, 9);
  const Tensor upstream = random(5, 9);
  const double eps = 1e-3;
  const Tensor rstd = rms_norm(x, gain, eps).rstd;
  expect_gradient(x, rms_norm_input_grad(upstream, x, gain, rstd),
                  [&](const Tensor& t) { return dot(rms_norm(t, gain, eps).y, upstream); });
  expect_gradient(gain, rms_norm_weight_grad(upstream, x, rstd),
                  [&](const Tensor& t) { return dot(rms_norm(x, t, eps).y, upstream); });
}

TEST_F(Reference, LinearGrads) {
  const Tensor x = random(4, 5);
  const Tensor weight = random(3, 5);
  const Tensor bias = random(1, 3);
  const Tensor upstream = random(4, 3);
  expect_gradient(x, linear_input_grad(upstream, weight),
                  [&](const Tensor& t) { return dot(linear(t, weight, bias), upstream); });
  expect_gradient(weight, linear_weight_grad(upstream, x),
                  [&](const Tensor& t) { return dot(linear(x, t, bias), upstream); });
  expect_gradient(bias, linear_bias_grad(upstream),
                  [&](const Tensor& t) { return dot(linear(x, weight, t), upstream); });
}

TEST_F(Reference, RopeInputGrad) {
  const Heads heads{3, 1, 8};
  const Ints positions = {0, 1, 5};
  const Tensor table = random(6, 8);
  const Tensor upstream = random(3, heads.qkv_cols());
  expect_gradient(random(3, heads.qkv_cols()), rope_input_grad(upstream, table, positions, heads),
                  [&](const Tensor& t) { return dot(rope(t, table, positions, heads), upstream); });
}

TEST_F(Reference, QkNormGrads) {
  const Heads heads{3, 1, 8};
  const Tensor qkv = random(4, heads.qkv_cols());
  const Tensor gain = random(2, 8);
  const Tensor upstream = random(4, heads.qkv_cols());
  const double eps = 1e-3;
  expect_gradient(qkv, qk_norm_input_grad(upstream, qkv, gain, heads, eps),
                  [&](const Tensor& t) { return dot(qk_norm(t, gain, heads, eps), upstream); });
  expect_gradient(gain, qk_norm_weight_grad(upstream, qkv, heads, eps),
                  [&](const Tensor& t) { return dot(qk_norm(qkv, t, heads, eps), upstream); });
}

TEST_F(Reference, AttentionInputGrad) {
  const Ints cu_seqlens = {0, 1, 1, 6, 13};
  for (const int64_t window : {0, 1, 3}) {
    const Heads heads{4, 2, 8};
    const Tensor qkv = random(14, heads.qkv_cols());
    const Tensor upstream = random(14, heads.out_cols());
    expect_gradient(qkv, attention_input_grad(upstream, qkv, cu_seqlens, heads, window, 0.3),
                    [&](const Tensor& t) {
                      return dot(attention(t, cu_seqlens, heads, window, 0.3).out, upstream);
                    });
  }
}

TEST_F(Reference, SwigluInputGrad) {
  const Tensor gate_up = random(4, 10);
  const Tensor upstream = random(4, 5);
  expect_gradient(gate_up, swiglu_input_grad(upstream, gate_up),
                  [&](const Tensor& t) { return dot(swiglu(t), upstream); });
}

TEST_F(Reference, XentGrad) {
  const Ints targets = {2, -100, 0, 6};
  const Tensor logits = random(4, 9);
  const ops::HeldVocab held{0, 7};  // and two columns of padding
  expect_gradient(
      logits, xent_grad(logits, xent_stats(logits, targets, held), targets, held),
      [&](const Tensor& t) { return xent_loss(xent_stats(t, targets, held), targets).at(0); });
}

/// The statistics of the parts of a vocabulary, one of them empty, combine to those of the whole.
TEST_F(Reference, XentOverSplitVocabulary) {
  const Ints targets = {2, 5, -100, 0};
  const Tensor logits = random(4, 7);
  const Tensor whole = xent_stats(logits, targets, whole_vocab(7));
  Tensor parts(12, 3);
  for (int64_t part = 0; part < 3; ++part) {
    const ops::HeldVocab held{4 * part, part == 0 ? 4 : part == 1 ? 3 : 0};
    Tensor columns(4, 4);
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t c = 0; c < held.count; ++c) columns.at(t, c) = logits.at(t, held.first + c);
    }
    const Tensor stats = xent_stats(columns, targets, held);
    std::copy(stats.values.begin(), stats.values.end(), parts.values.begin() + 12 * part);
  }
  const Tensor combined = xent_combine(parts, targets);
  for (int64_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(combined.at(i), whole.at(i), 1e-12);
}

}  // namespace
}  // namespace trireme::contract
