// The same bits for any number of threads, and for a row in any company.
#include "contract/suite.h"
#include "ops/control.h"

namespace trireme::contract {
namespace {

/// Builds the same call on any backend.
using Build = std::function<CallUnderTest(Backend&)>;

class Invariance : public Ops {
 protected:
  /// Compares all outputs of 1 thread with those of 2, 3 and 4.
  void expect_same_for_any_threads(const Build& build) {
    const auto outputs = [&](int num_threads) {
      const auto made = GetParam().make(num_threads);
      CallUnderTest call = build(*made);
      call.run();
      std::vector<std::vector<std::byte>> all;
      for (int i = 0; i < call.call().num_args; ++i) all.push_back(call.bytes(i));
      return all;
    };
    const auto want = outputs(1);
    for (const int num_threads : {2, 3, 4}) {
      ASSERT_EQ(outputs(num_threads), want) << num_threads << " threads";
    }
  }

  CallUnderTest build(Backend& on, ops::OpKind kind, ops::Law law = ops::Law::set) const {
    return CallUnderTest(on, kind, t(), law);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Invariance, testing::ValuesIn(backend_rows()), row_name);

TEST_P(Invariance, ThreadsOfProducts) {
  const Tensor x = random(203, 96);
  const Tensor weight = random(509, 96);
  const Tensor dy = random(203, 509);
  const Tensor bias = random(1, 509);
  const Tensor before = random_f32(509, 96);
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::linear);
    call.output(203, 509, t());
    call.input(x, t());
    call.input(weight, t());
    call.input(bias, t());
    return call;
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::linear_input_grad);
    call.output(203, 96, t());
    call.input(dy, t());
    call.input(weight, t());
    return call;
  });
  for (const ops::Law law : kLaws) {
    expect_same_for_any_threads([&](Backend& on) {
      CallUnderTest call = build(on, ops::OpKind::linear_weight_grad, law);
      result(call, law, before, DType::f32);
      call.input(dy, t());
      call.input(x, t());
      return call;
    });
  }
}

TEST_P(Invariance, ThreadsOfBothGradientsOfANorm) {
  const Tensor dy = random(333, 509);
  const Tensor x = random(333, 509);
  const Tensor gain = random(1, 509);
  const Tensor rstd = random_f32(1, 333);
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::rms_norm_grad);
    call.output(1, 509, DType::f32);
    call.output(333, 509, t());
    call.input(dy, t());
    call.input(x, t());
    call.input(gain, t());
    call.input(rstd, DType::f32);
    call.absent();
    return call;
  });
}

TEST_P(Invariance, ThreadsOfReductions) {
  const Tensor dy = random(333, 509);
  const Tensor x = random(333, 509);
  const Tensor rstd = random_f32(1, 333);
  const Tensor flat = random_f32(1, 100003);
  Ints ids = random_ints(333, 40);
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::linear_bias_grad);
    call.output(1, 509, DType::f32);
    call.input(dy, t());
    return call;
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::rms_norm_weight_grad);
    call.output(1, 509, DType::f32);
    call.input(dy, t());
    call.input(x, t());
    call.input(rstd, DType::f32);
    return call;
  });
  const Heads heads{6, 2, 56};
  const Tensor qkv = random(333, heads.qkv_cols());
  const Tensor d_qkv = random(333, heads.qkv_cols());
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::qk_norm_weight_grad);
    call.set_heads(heads);
    call.output(2, heads.head_dim, DType::f32);
    call.input(d_qkv, t());
    call.input(qkv, t());
    return call;
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::sum_squares);
    call.output(1, 1, DType::f64);
    call.input(flat, DType::f32);
    return call;
  });
  Ints order(ids.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::embedding_weight_grad);
    call.output(509, 509, DType::f32);
    call.input(dy, t());
    call.input(ids);
    call.input(order);
    return call;
  });
}

TEST_P(Invariance, ThreadsOfAttention) {
  const Heads heads{6, 2, 32};
  const Ints cu_seqlens = {0, 1, 18, 82, 282, 482};
  const Tensor qkv = random(496, heads.qkv_cols());
  const Tensor d_out = random(496, heads.out_cols());
  const Attended saved = attention(qkv, cu_seqlens, heads, 0, 0.2);
  const auto set_attributes = [&](CallUnderTest& call) {
    call.set_heads(heads);
    call.attributes().attention_scale = 0.2f;
    call.attributes().longest = 200;
  };
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::attention);
    set_attributes(call);
    call.output(496, heads.out_cols(), t());
    call.output(heads.heads, 496, DType::f32);
    call.input(qkv, t());
    call.input(cu_seqlens);
    return call;
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::attention_input_grad);
    set_attributes(call);
    call.output(496, heads.qkv_cols(), t());
    call.input(d_out, t());
    call.input(qkv, t());
    call.input(saved.out, t());
    call.input(saved.lse, DType::f32);
    call.input(cu_seqlens);
    return call;
  });
}

TEST_P(Invariance, ThreadsOfRowsAndXent) {
  const Tensor x = random(97, 509);
  const Tensor gain = random(1, 509);
  const Tensor logits = random(97, 509, 5.0);
  const Ints targets = random_ints(97, 509);
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::rms_norm);
    call.attributes().eps = 1e-6;
    call.output(97, 509, t());
    call.output(1, 97, DType::f32);
    call.input(x, t());
    call.input(gain, t());
    return call;
  });
  expect_same_for_any_threads([&](Backend& on) {
    CallUnderTest call = build(on, ops::OpKind::xent_stats);
    call.output(97, 3, DType::f32);
    call.output(97, 509, t());
    call.input(logits, t());
    call.input(targets);
    return call;
  });
}

/// A row of a product has the same bits whatever the number of rows beside it. Micro-batches are
/// padded to multiples of 16 tokens; with tile registers (AMX) fewer rows take another kernel, and cuBLASLt chooses by their number.
TEST_P(Invariance, RowsOfProducts) {
  if (GetParam().name.starts_with("cuda")) GTEST_SKIP() << "a promise of the CPU";
  const Tensor x = random(256, 200);
  const Tensor weight = random(150, 200);
  const auto product = [&](int64_t rows, DType output) {
    Tensor part(rows, 200);
    std::copy_n(x.values.begin(), part.size(), part.values.begin());
    CallUnderTest call(backend(), ops::OpKind::linear, t());
    call.output(rows, 150, output);
    call.input(part, t());
    call.input(weight, t());
    call.absent();
    call.run();
    return call.bytes(0);
  };
  for (const DType output : {t(), DType::f32}) {
    const auto want = product(256, output);
    for (const int64_t rows : {16, 32, 48, 64, 112, 144, 240}) {
      const auto got = product(rows, output);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << rows << " rows";
    }
  }
}

/// Masks and padding rows of a bigger extent leave the real rows' bits alone.
TEST_P(Invariance, RowsOfNorms) {
  const Tensor x = random(40, 100);
  const Tensor gain = random(1, 100);
  const auto norm = [&](int64_t rows) {
    Tensor part(rows, 100);
    std::copy_n(x.values.begin(), part.size(), part.values.begin());
    CallUnderTest call(backend(), ops::OpKind::rms_norm, t());
    call.attributes().eps = 1e-6;
    call.output(rows, 100, t());
    call.output(1, rows, DType::f32);
    call.input(part, t());
    call.input(gain, t());
    call.run();
    return call.bytes(0);
  };
  const auto want = norm(40);
  const auto got = norm(7);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
}

}  // namespace
}  // namespace trireme::contract
