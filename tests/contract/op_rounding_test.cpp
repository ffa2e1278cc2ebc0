// State kept as bf16: what AdamW and SGD round stochastically, element by element.
#include <cmath>
#include <cstring>

#include "base/stochastic_rounding.h"
#include "contract/suite.h"
#include "ops/control.h"

namespace trireme::contract {
namespace {

std::vector<BackendRow> bf16_rows() {
  std::vector<BackendRow> rows = backend_rows();
  std::erase_if(rows, [](const BackendRow& row) { return row.dtype != DType::bf16; });
  return rows;
}

struct Settings {
  double learning_rate = 1e-2;
  double updates = 3;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double grad_scale = 1;
  uint64_t stream = 77;
  int64_t first = 0;

  double bias1() const { return beta1 < 1 ? 1 - std::pow(beta1, updates) : 1; }
  double bias2() const { return beta2 < 1 ? 1 - std::pow(beta2, updates) : 1; }
  Tensor control() const {
    Tensor block(1, ops::kControlSize);
    const auto set = [&](ops::Control field, double value) { block.at(ops::index(field)) = value; };
    set(ops::Control::pending, 1);
    set(ops::Control::updates, updates);
    set(ops::Control::inv_tokens, grad_scale);
    set(ops::Control::clip_coef, 1);
    set(ops::Control::learning_rate, learning_rate);
    set(ops::Control::bias1, bias1());
    set(ops::Control::bias2, bias2());
    return block;
  }
  RoundingKey key() const { return rounding_key(stream, static_cast<uint64_t>(updates)); }
  uint32_t word(int64_t element) const {
    return rounding_word(key(), static_cast<uint32_t>(first + element));
  }
};

using Bits = std::vector<uint16_t>;

Tensor widened(const Bits& bits) {
  Tensor wide(1, static_cast<int64_t>(bits.size()));
  for (size_t i = 0; i < bits.size(); ++i)
    wide.at(static_cast<int64_t>(i)) = f32_from_bf16(bits[i]);
  return wide;
}

/// What is kept, and in which type.
struct State {
  Bits master;
  Bits m, v;
  Tensor wide_m, wide_v;  // instead, where moments are f32
  bool narrow_moments = true;
  int64_t size() const { return static_cast<int64_t>(master.size()); }
};

class Rounding : public Ops {
 protected:
  Bits random_bits(int64_t size, bool positive = false) {
    Bits bits;
    for (const double value : random_f32(1, size).values) {
      const double kept = positive ? value * value : value;
      bits.push_back(bf16_from_f32(static_cast<float>(kept)));
    }
    return bits;
  }
  State random_state(int64_t size, bool narrow_moments) {
    State state{random_bits(size), random_bits(size), random_bits(size, true), {}, {},
                narrow_moments};
    state.wide_m = widened(state.m);
    state.wide_v = widened(state.v);
    return state;
  }

  static Bits read_bits(CallUnderTest& call, int arg) {
    const auto bytes = call.bytes(arg);
    Bits bits(bytes.size() / 2);
    std::memcpy(bits.data(), bytes.data(), bytes.size());
    return bits;
  }

  State adamw(const State& before, const Tensor& grad, const Settings& settings) {
    CallUnderTest call(backend(), ops::OpKind::adamw, t());
    auto& a = call.attributes();
    a.beta1 = settings.beta1;
    a.beta2 = settings.beta2;
    a.eps = 1e-8;
    a.weight_decay = settings.weight_decay;
    a.rounding_stream = settings.stream;
    a.first_element = settings.first;
    call.bytes_input(before.master.data(), DType::bf16, before.size());
    call.absent();
    if (before.narrow_moments) {
      call.bytes_input(before.m.data(), DType::bf16, before.size());
      call.bytes_input(before.v.data(), DType::bf16, before.size());
    } else {
      call.update(before.wide_m, DType::f32);
      call.update(before.wide_v, DType::f32);
    }
    call.input(grad, DType::f32);
    call.input(settings.control(), DType::f64);
    call.run();
    State after{read_bits(call, 0), {}, {}, {}, {}, before.narrow_moments};
    if (before.narrow_moments) {
      after.m = read_bits(call, 2);
      after.v = read_bits(call, 3);
    } else {
      after.wide_m = call.read(2);
      after.wide_v = call.read(3);
    }
    return after;
  }

  Bits sgd(const Bits& master, const Tensor& grad, const Settings& settings) {
    CallUnderTest call(backend(), ops::OpKind::sgd, t());
    call.attributes().weight_decay = settings.weight_decay;
    call.attributes().rounding_stream = settings.stream;
    call.attributes().first_element = settings.first;
    call.bytes_input(master.data(), DType::bf16, static_cast<int64_t>(master.size()));
    call.absent();
    call.input(grad, DType::f32);
    call.input(settings.control(), DType::f64);
    call.run();
    return read_bits(call, 0);
  }

  /// The number, rounded with the element's own bits: a backend whose fp32 differs in the last
  /// place may round one element in a hundred to the other neighbour, never further.
  static void expect_rounded(const Bits& got, const Tensor& want, const Settings& settings,
                             uint32_t (*bits_of)(uint32_t)) {
    ASSERT_EQ(static_cast<int64_t>(got.size()), want.size());
    int64_t other = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
      const uint16_t expected =
          bf16_stochastic(static_cast<float>(want.at(i)), bits_of(settings.word(i)));
      const uint16_t found = got[static_cast<size_t>(i)];
      other += found != expected;
      ASSERT_LE(std::abs(int{found} - int{expected}), 1) << i << ": " << want.at(i);
    }
    EXPECT_LE(other, want.size() / 100);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Rounding, testing::ValuesIn(bf16_rows()), row_name);

TEST_P(Rounding, AdamwRoundsWithTheElementsBits) {
  for (const bool narrow_moments : {true, false}) {
    for (const int64_t size : {0, 1, 15, 16, 1037, 40000}) {
      const State state = random_state(size, narrow_moments);
      const Tensor grad = random_f32(1, size);
      Settings settings;
      settings.first = 12345;
      const State got = adamw(state, grad, settings);
      const AdamState want = contract::adamw(
          {widened(state.master), state.wide_m, state.wide_v}, grad,
          {settings.learning_rate, settings.beta1, settings.beta2, 1e-8, settings.weight_decay,
           settings.grad_scale, settings.bias1(), settings.bias2()});
      expect_rounded(got.master, want.master, settings, master_bits);
      if (narrow_moments) {
        expect_rounded(got.m, want.m, settings, exp_avg_bits);
        expect_rounded(got.v, want.v, settings, exp_avg_sq_bits);
      } else {
        expect_close(got.wide_m, want.m, 1e-6);
        expect_close(got.wide_v, want.v, 1e-6);
      }
    }
  }
}

TEST_P(Rounding, SgdRoundsWithTheElementsBits) {
  for (const int64_t size : {0, 1, 1037}) {
    const Bits master = random_bits(size);
    const Tensor grad = random_f32(1, size);
    Settings settings;
    settings.learning_rate = 0.5;
    Tensor want = widened(master);
    for (int64_t i = 0; i < size; ++i) {
      want.at(i) -= 0.5 * (grad.at(i) + settings.weight_decay * want.at(i));
    }
    expect_rounded(sgd(master, grad, settings), want, settings, master_bits);
  }
}

/// beta1 = 0 hands the gradient itself to m's rounding.
TEST_P(Rounding, TheMeanOverUpdatesIsTheNumber) {
  constexpr int64_t kElements = 4096;
  constexpr int kUpdates = 64;
  for (const float value : {1.0f + 0x1p-10f, -3.14159265f, 1e-30f, 1.99999988f}) {
    const float low = f32_from_bf16(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    const double step = std::abs(low) * 0x1p-7;  // at least the distance of the neighbours
    Settings settings;
    settings.beta1 = 0;
    settings.learning_rate = 0;
    double sum = 0;
    for (int update = 1; update <= kUpdates; ++update) {
      settings.updates = update;
      State state{Bits(kElements), Bits(kElements), Bits(kElements), {}, {}, true};
      const Tensor grad(1, kElements, value);
      for (const uint16_t bits : adamw(state, grad, settings).m) {
        sum += static_cast<double>(f32_from_bf16(bits)) - value;
      }
    }
    // Five standard errors of what is at most half a step wide on either side.
    const double n = double{kElements} * kUpdates;
    EXPECT_NEAR(sum / n, 0, 5 * step / 2 / std::sqrt(n)) << value;
  }
}

/// A second moment without gradient decays by 0.999 a step, less than half a bf16 step.
TEST_P(Rounding, MomentsAndMastersAreNotFrozen) {
  constexpr int64_t kElements = 4096;
  constexpr int kUpdates = 500;
  State state{Bits(kElements, bf16_from_f32(1.0f)),
              Bits(kElements),
              Bits(kElements, bf16_from_f32(1.0f)),
              {},
              {},
              true};
  Settings settings;
  settings.beta2 = 0.999;
  settings.learning_rate = 1e-3;
  settings.weight_decay = 0.5;
  const Tensor grad(1, kElements);
  for (int update = 1; update <= kUpdates; ++update) {
    settings.updates = update;
    state = adamw(state, grad, settings);
  }
  const auto mean = [](const Bits& bits) {
    double sum = 0;
    for (const uint16_t b : bits) sum += static_cast<double>(f32_from_bf16(b));
    return sum / static_cast<double>(bits.size());
  };
  EXPECT_NEAR(mean(state.v), std::pow(0.999, kUpdates), 3e-3);
  EXPECT_NEAR(mean(state.master), std::pow(1 - 5e-4, kUpdates), 3e-3);
}

/// Every bf16 there is, with updates that change nothing.
TEST_P(Rounding, WhatBf16HoldsStays) {
  Bits all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto expect_kept = [&](const Bits& got) {
    for (size_t i = 0; i < all.size(); ++i) {
      const float was = f32_from_bf16(all[i]);
      const float is = f32_from_bf16(got[i]);
      ASSERT_TRUE(is == was || (std::isnan(is) && std::isnan(was))) << i << ": " << is;
    }
  };
  const Tensor grad(1, 65536);
  Settings settings;
  settings.learning_rate = 0;
  settings.beta1 = 1;
  settings.beta2 = 1;
  const Bits zero(65536);
  expect_kept(adamw({all, zero, zero, {}, {}, true}, grad, settings).master);
  const State moments = adamw({zero, all, all, {}, {}, true}, grad, settings);
  expect_kept(moments.m);
  expect_kept(moments.v);
}

TEST_P(Rounding, FiniteStaysFinite) {
  constexpr float kLargest = 3.40282347e38f;
  Tensor grad(1, 4096, kLargest);
  for (int64_t i = 0; i < grad.size(); i += 2) grad.at(i) = -kLargest;
  Settings settings;
  settings.beta1 = 0;
  settings.learning_rate = 0;
  const State state{Bits(4096), Bits(4096), Bits(4096), {}, {}, true};
  const Bits m = adamw(state, grad, settings).m;
  for (size_t i = 0; i < m.size(); ++i) ASSERT_EQ(m[i], i % 2 == 0 ? 0xff7f : 0x7f7f) << i;
}

/// The bits belong to the element of the stream and to the update, not to the call.
TEST_P(Rounding, AnyCutGivesTheSameBits) {
  constexpr int64_t kSize = 5000;
  const State whole = random_state(kSize, true);
  const Tensor grad = random_f32(1, kSize);
  Settings settings;
  settings.first = (int64_t{1} << 32) - kSize;  // the last elements of a stream
  const State want = adamw(whole, grad, settings);
  State got{{}, {}, {}, {}, {}, true};
  for (int64_t begin = 0; begin < kSize;) {
    const int64_t end = std::min(kSize, begin + 1 + (begin * 7) % 1100);
    const auto cut = [&](const Bits& bits) {
      return Bits(bits.begin() + begin, bits.begin() + end);
    };
    Tensor part(1, end - begin);
    for (int64_t i = begin; i < end; ++i) part.at(i - begin) = grad.at(i);
    Settings place = settings;
    place.first += begin;
    const State piece =
        adamw({cut(whole.master), cut(whole.m), cut(whole.v), {}, {}, true}, part, place);
    got.master.insert(got.master.end(), piece.master.begin(), piece.master.end());
    got.m.insert(got.m.end(), piece.m.begin(), piece.m.end());
    got.v.insert(got.v.end(), piece.v.begin(), piece.v.end());
    begin = end;
  }
  EXPECT_EQ(got.master, want.master);
  EXPECT_EQ(got.m, want.m);
  EXPECT_EQ(got.v, want.v);

  Settings other = settings;
  other.stream += 1;
  EXPECT_NE(adamw(whole, grad, other).master, want.master);
  Bits constant(kSize, bf16_from_f32(1.0f));
  settings.updates = 4;
  const Bits fourth = sgd(constant, grad, settings);
  settings.updates = 5;
  EXPECT_NE(sgd(constant, grad, settings), fourth);
}

}  // namespace
}  // namespace trireme::contract
