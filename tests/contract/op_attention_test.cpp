// Attention and its gradient over ragged sequences, grouped heads and windows.
#include <cmath>

#include "contract/suite.h"

namespace trireme::contract {
namespace {

struct Case {
  Ints cu_seqlens;
  int64_t tokens;  // padding included
  Heads heads;
  int32_t window = 0;
  double spread = 1.0;  // of the random values
};

int32_t longest_of(const Ints& cu_seqlens) {
  int32_t longest = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    longest = std::max(longest, cu_seqlens[s + 1] - cu_seqlens[s]);
  }
  return longest;
}

bool even(const Ints& cu_seqlens) {
  bool all = true;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    all = all && cu_seqlens[s + 1] - cu_seqlens[s] == cu_seqlens[1] - cu_seqlens[0];
  }
  return all;
}

/// A long sequence among many short ones, which GPUs take apart.
Ints one_long_among_short() {
  Ints cu_seqlens = {0};
  for (int32_t s = 0; s < 24; ++s) {
    cu_seqlens.push_back(cu_seqlens.back() + (s == 9 ? 1000 : 1 + s * 37 % 120));
  }
  return cu_seqlens;
}

const Ints kRagged = {0, 1, 18, 82, 282};  // lengths 1, 17, 64, 200

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int32_t head_dim : {8, 16, 24, 64, 128}) {
    all.push_back({kRagged, 288, {4, 2, head_dim}});
  }
  for (const int32_t window : {1, 5, 16, 40, 64, 100, 1000}) {
    all.push_back({kRagged, 288, {6, 2, 16}, window});
  }
  // What GPUs have kernels of their own for: heads of these sizes, ragged and even.
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t window : {0, 1, 40, 100}) {
      if (window > 0) all.push_back({kRagged, 288, {2, 1, head_dim}, window});
      all.push_back({{0, 150, 300}, 304, {2, 1, head_dim}, window});
    }
  }
  all.push_back({kRagged, 282, {1, 1, 64}});
  all.push_back({{0, 65, 128, 129, 257}, 272, {3, 3, 32}});
  const Ints mixed = one_long_among_short();
  all.push_back({mixed, mixed.back() + 5, {8, 4, 64}, 90});
  all.push_back({{0, 0, 5, 5}, 16, {2, 1, 16}});       // empty sequences
  all.push_back({{0}, 16, {2, 1, 16}});                // no sequence, all padding
  all.push_back({{0}, 0, {2, 1, 16}});                 // no row
  all.push_back({{0, 150}, 160, {2, 1, 64}, 0, 8.0});  // scores of hundreds: a hard softmax
  return all;
}

/// Scores of hundreds carry rounding errors of their own size into the exponent, and make nearly
/// every score gradient a difference of almost equal numbers. Of more values the worst is worse.
double slack(const Case& c) {
  if (c.spread > 1) return 20.0;
  return c.tokens > 1000 ? 1.5 : 1.0;
}

double scale_of(const Heads& heads) {
  return static_cast<double>(1.0f / std::sqrt(static_cast<float>(heads.head_dim)));
}

void set_attributes(CallUnderTest& call, const Case& c) {
  call.set_heads(c.heads);
  call.attributes().window = c.window;
  call.attributes().attention_scale = static_cast<float>(scale_of(c.heads));
  call.attributes().longest = longest_of(c.cu_seqlens);
  call.attributes().even = even(c.cu_seqlens);
  for (size_t s = 0; s + 1 < c.cu_seqlens.size(); ++s) {
    call.attributes().lengths.add(c.cu_seqlens[s + 1] - c.cu_seqlens[s]);
  }
}

TEST_P(Ops, Attention) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(
        fmt::format("head_dim {} window {} tokens {}", c.heads.head_dim, c.window, c.tokens));
    const Tensor qkv = random(c.tokens, c.heads.qkv_cols(), c.spread);
    CallUnderTest call(backend(), ops::OpKind::attention, t());
    set_attributes(call, c);
    call.output(c.tokens, c.heads.out_cols(), t(), 8);
    call.output(c.heads.heads, c.tokens, DType::f32);
    call.input(qkv, t());
    call.input(c.cu_seqlens);
    call.run();
    const Attended want = attention(qkv, c.cu_seqlens, c.heads, c.window, scale_of(c.heads));
    expect_close(call.read(0), want.out, slack(c) * limit(OpClass::attention, t()));
    expect_close(call.read(1), want.lse, limit(OpClass::attention, DType::f32));
  }
}

/// Runs the gradient with log-sum-exp and output as the forward pass would have saved them.
CallUnderTest run_gradient(Backend& backend, DType t, const Case& c, const Tensor& qkv,
                           const Tensor& d_out) {
  const Attended saved = attention(qkv, c.cu_seqlens, c.heads, c.window, scale_of(c.heads));
  CallUnderTest call(backend, ops::OpKind::attention_input_grad, t);
  set_attributes(call, c);
  call.output(c.tokens, c.heads.qkv_cols(), t);
  call.input(d_out, t, 8);
  call.input(qkv, t);
  call.input(saved.out, t);
  call.input(saved.lse, DType::f32);
  call.input(c.cu_seqlens);
  call.run();
  return call;
}

TEST_P(Ops, AttentionInputGrad) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(
        fmt::format("head_dim {} window {} tokens {}", c.heads.head_dim, c.window, c.tokens));
    const Tensor qkv = random(c.tokens, c.heads.qkv_cols(), c.spread);
    const Tensor d_out = random(c.tokens, c.heads.out_cols());
    CallUnderTest call = run_gradient(backend(), t(), c, qkv, d_out);
    const Tensor want =
        attention_input_grad(d_out, qkv, c.cu_seqlens, c.heads, c.window, scale_of(c.heads));
    expect_close(call.read(0), want, slack(c) * limit(OpClass::attention_grad, t()));
  }
}

/// Four threads have more than one KV head of one sequence to share, so that dK, dV and dQ become
/// separate items; one thread does all in one.
TEST_P(Ops, AttentionInputGradIsTheSameForAnyDivision) {
  const auto one = GetParam().make(1);
  const auto four = GetParam().make(4);
  for (const int32_t window : {0, 90}) {
    const Case c{{0, 700}, 704, {3, 1, 16}, window};
    const Tensor qkv = random(c.tokens, c.heads.qkv_cols());
    const Tensor d_out = random(c.tokens, c.heads.out_cols());
    CallUnderTest whole = run_gradient(*one, t(), c, qkv, d_out);
    CallUnderTest split = run_gradient(*four, t(), c, qkv, d_out);
    EXPECT_EQ(whole.bytes(0), split.bytes(0));
    expect_close(
        split.read(0),
        attention_input_grad(d_out, qkv, c.cu_seqlens, c.heads, c.window, scale_of(c.heads)),
        limit(OpClass::attention_grad, t()));
  }
}

/// A row of a sequence does not depend on what else is in the batch.
TEST_P(Ops, AttentionOfASequenceAloneIsTheSame) {
  const Heads heads{4, 2, 32};
  const Tensor qkv = random(288, heads.qkv_cols());
  const auto run = [&](const Tensor& rows, const Ints& cu_seqlens) {
    CallUnderTest call(backend(), ops::OpKind::attention, t());
    set_attributes(call, {cu_seqlens, rows.rows, heads});
    call.output(rows.rows, heads.out_cols(), t());
    call.output(heads.heads, rows.rows, DType::f32);
    call.input(rows, t());
    call.input(cu_seqlens);
    call.run();
    return call.read(0);
  };
  const Tensor together = run(qkv, kRagged);
  Tensor alone(200, heads.qkv_cols());
  for (int64_t r = 0; r < 200; ++r) {
    for (int64_t c = 0; c < alone.cols; ++c) alone.at(r, c) = qkv.at(82 + r, c);
  }
  const Tensor result = run(alone, {0, 200});
  for (int64_t r = 0; r < 200; ++r) {
    for (int64_t c = 0; c < result.cols; ++c) {
      ASSERT_EQ(result.at(r, c), together.at(82 + r, c)) << r << " " << c;
    }
  }
}

TEST_P(Ops, AttentionCarriesNan) {
  Tensor qkv = random(20, 48);
  qkv.at(3, 20) = std::nan("");  // a key of token 3
  CallUnderTest call(backend(), ops::OpKind::attention, t());
  set_attributes(call, {{0, 20}, 20, {1, 1, 16}});
  call.output(20, 16, t());
  call.output(1, 20, DType::f32);
  call.input(qkv, t());
  call.input(Ints{0, 20});
  call.run();
  const Tensor out = call.read(0);
  for (int64_t r = 0; r < 20; ++r) EXPECT_EQ(std::isnan(out.at(r, 0)), r >= 3) << r;
}

}  // namespace
}  // namespace trireme::contract
