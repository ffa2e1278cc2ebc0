// Optimizers, the two planes of a master, gradient norm and the control block.
#include <bit>
#include <cmath>
#include <cstring>

#include "contract/suite.h"
#include "ops/control.h"

namespace trireme::contract {
namespace {

/// A control block with a pending update.
Tensor control_block(double learning_rate) {
  Tensor control(1, ops::kControlSize);
  const auto set = [&](ops::Control field, double value) { control.at(ops::index(field)) = value; };
  set(ops::Control::pending, 1);
  set(ops::Control::inv_tokens, 1.0 / 32);
  set(ops::Control::clip_coef, 0.75);
  set(ops::Control::learning_rate, learning_rate);
  set(ops::Control::bias1, 1.0 - std::pow(0.9, 3));
  set(ops::Control::bias2, 1.0 - std::pow(0.99, 3));
  return control;
}

/// A master in the planes of the compute dtype: arguments value and remainder.
struct Planes {
  std::vector<std::byte> value;
  std::vector<std::byte> remainder;
  Planes(const Tensor& master, DType dtype) {
    if (dtype == DType::f32) {
      value = encoded(master, DType::f32);
      return;
    }
    for (const double m : master.values) {
      const SplitMaster split = split_master(static_cast<float>(m));
      const auto append = [](std::vector<std::byte>& to, const void* from) {
        const auto* bytes = static_cast<const std::byte*>(from);
        to.insert(to.end(), bytes, bytes + 2);
      };
      append(value, &split.value);
      append(remainder, &split.remainder);
    }
  }
  void add_to(CallUnderTest& call, DType dtype) const {
    call.bytes_input(value.data(), dtype, static_cast<int64_t>(value.size()) / size_of(dtype));
    if (dtype == DType::f32) {
      call.absent();
    } else {
      call.bytes_input(remainder.data(), DType::i16, static_cast<int64_t>(remainder.size()) / 2);
    }
  }
  static Tensor read(CallUnderTest& call, int value_arg, DType dtype) {
    if (dtype == DType::f32) return call.read(value_arg);
    const auto values = call.bytes(value_arg);
    const auto remainders = call.bytes(value_arg + 1);
    Tensor master(1, static_cast<int64_t>(values.size()) / 2);
    for (int64_t i = 0; i < master.size(); ++i) {
      uint16_t value;
      int16_t remainder;
      std::memcpy(&value, values.data() + 2 * i, 2);
      std::memcpy(&remainder, remainders.data() + 2 * i, 2);
      master.at(i) = static_cast<double>(join_master(value, remainder));
    }
    return master;
  }
};

AdamSettings settings_of(const Tensor& control, double weight_decay) {
  const auto field = [&](ops::Control which) { return control.at(ops::index(which)); };
  return {field(ops::Control::learning_rate),
          0.9,
          0.99,
          1e-8,
          weight_decay,
          field(ops::Control::inv_tokens) * field(ops::Control::clip_coef),
          field(ops::Control::bias1),
          field(ops::Control::bias2)};
}

class Optimizers : public Ops {
 protected:
  CallUnderTest adamw_call(const AdamState& state, const Tensor& grad, const Tensor& control) {
    CallUnderTest call(backend(), ops::OpKind::adamw, t());
    auto& a = call.attributes();
    a.beta1 = 0.9;
    a.beta2 = 0.99;
    a.eps = 1e-8;
    a.weight_decay = 0.1;
    Planes(state.master, t()).add_to(call, t());
    call.update(state.m, DType::f32);
    call.update(state.v, DType::f32);
    call.input(grad, DType::f32);
    call.input(control, DType::f64);
    return call;
  }
  CallUnderTest sgd_call(const Tensor& master, const Tensor& grad, const Tensor& control) {
    CallUnderTest call(backend(), ops::OpKind::sgd, t());
    call.attributes().weight_decay = 0.1;
    Planes(master, t()).add_to(call, t());
    call.input(grad, DType::f32);
    call.input(control, DType::f64);
    return call;
  }
  AdamState random_state(int64_t size) {
    AdamState state{random_f32(1, size), random_f32(1, size), random_f32(1, size)};
    for (double& v : state.v.values) v = static_cast<double>(static_cast<float>(v * v));
    return state;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Optimizers, testing::ValuesIn(backend_rows()), row_name);

TEST_P(Optimizers, AdamwFollowsTheReference) {
  for (const int64_t size : {0, 1, 15, 16, 1037, 40000}) {
    const AdamState state = random_state(size);
    const Tensor grad = random_f32(1, size, 20.0);
    const Tensor control = control_block(1e-2);
    CallUnderTest call = adamw_call(state, grad, control);
    call.run();
    const AdamState want = adamw(state, grad, settings_of(control, 0.1));
    expect_close(Planes::read(call, 0, t()), want.master, 1e-6);
    expect_close(call.read(2), want.m, 1e-6);
    expect_close(call.read(3), want.v, 1e-6);
  }
}

/// Twenty steps on masters that move less than a bf16 step each.
TEST_P(Optimizers, SmallUpdatesAreNotLost) {
  AdamState state{Tensor(1, 64, 1.0), Tensor(1, 64), Tensor(1, 64)};
  AdamState want = state;
  const Tensor grad(1, 64, 1.0);
  const Tensor control = control_block(1e-5);
  for (int step = 0; step < 20; ++step) {
    CallUnderTest call = adamw_call(state, grad, control);
    call.run();
    state = {Planes::read(call, 0, t()), call.read(2), call.read(3)};
    want = adamw(want, grad, settings_of(control, 0.1));
  }
  EXPECT_LT(want.master.at(0), 1.0 - 1e-5);
  expect_close(state.master, want.master, 1e-6);
}

TEST_P(Optimizers, SgdFollowsTheReference) {
  for (const int64_t size : {0, 1, 1037}) {
    const Tensor master = random_f32(1, size);
    const Tensor grad = random_f32(1, size, 20.0);
    CallUnderTest call = sgd_call(master, grad, control_block(0.5));
    call.run();
    Tensor want = master;
    for (int64_t i = 0; i < size; ++i) {
      want.at(i) -= 0.5 * (grad.at(i) / 32 * 0.75 + 0.1 * master.at(i));
    }
    expect_close(Planes::read(call, 0, t()), want, 1e-6);
  }
}

TEST_P(Optimizers, NothingMovesUnlessPendingAndNotSkipped) {
  const int64_t size = 517;
  const AdamState state = random_state(size);
  const Tensor grad(1, size, std::nan(""));
  for (const auto& [pending, skip] : {std::pair{0.0, 0.0}, {1.0, 1.0}, {0.0, 1.0}}) {
    Tensor control = control_block(1e-2);
    control.at(ops::index(ops::Control::pending)) = pending;
    control.at(ops::index(ops::Control::skip)) = skip;
    for (const bool adam : {true, false}) {
      CallUnderTest call =
          adam ? adamw_call(state, grad, control) : sgd_call(state.master, grad, control);
      std::vector<std::vector<std::byte>> before;
      const int num_states = adam ? 4 : 2;
      for (int i = 0; i < num_states; ++i) before.push_back(call.bytes(i));
      call.run();
      for (int i = 0; i < num_states; ++i) {
        EXPECT_EQ(call.bytes(i), before[static_cast<size_t>(i)]) << i;
      }
    }
  }
}

/// Every sign and exponent with mantissas at the edges of the split and random ones.
TEST_P(Optimizers, MastersComeBackExactly) {
  std::vector<float> masters;
  for (uint32_t top = 0; top < 512; ++top) {
    for (const uint32_t mantissa :
         {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x7f7fffu, 0x7f8000u, 0x7fffffu}) {
      masters.push_back(std::bit_cast<float>(top << 23 | mantissa));
    }
    for (int i = 0; i < 20; ++i) {
      const auto mantissa = static_cast<uint32_t>(generator_() & 0x7fffffu);
      masters.push_back(std::bit_cast<float>(top << 23 | mantissa));
    }
  }
  masters.resize(masters.size() - 3);  // an odd end
  const auto size = static_cast<int64_t>(masters.size());

  CallUnderTest import(backend(), ops::OpKind::import_master, t());
  import.output(1, size, t());
  if (t() == DType::f32) {
    import.absent();
  } else {
    import.output(1, size, DType::i16);
  }
  import.bytes_input(masters.data(), DType::f32, size);
  import.run();
  if (t() == DType::bf16) {
    const auto values = import.bytes(0);
    for (size_t i = 0; i < masters.size(); ++i) {
      uint16_t value;
      std::memcpy(&value, values.data() + 2 * i, 2);
      ASSERT_EQ(value, split_master(masters[i]).value) << i;
    }
  }

  CallUnderTest back(backend(), ops::OpKind::export_master, t());
  back.output(1, size, DType::f32);
  back.bytes_input(import.bytes(0).data(), t(), size);
  if (t() == DType::f32) {
    back.absent();
  } else {
    back.bytes_input(import.bytes(1).data(), DType::i16, size);
  }
  back.run();
  EXPECT_EQ(back.bytes(0), import.bytes(2));
}

TEST_P(Optimizers, SumSquares) {
  for (const ops::Law law : kLaws) {
    for (const int64_t size : {0, 1, 15, 16384, 16385, 70001}) {
      const Tensor before = random_f32(1, 1);
      const Tensor x = random_f32(1, size, 1e-3);
      CallUnderTest call(backend(), ops::OpKind::sum_squares, t(), law);
      result(call, law, before, DType::f64);
      call.input(x, DType::f32);
      call.run();
      Tensor squares(1, 1);
      for (const double v : x.values) squares.at(0) += v * v;
      expect_close(call.read(0), expected(law, before, squares), 1e-13);
    }
  }
}

TEST_P(Optimizers, SumSquaresOfHugeAndNonFinite) {
  for (const double value : {1e30, static_cast<double>(INFINITY), std::nan("")}) {
    Tensor x(1, 100, 1.0);
    x.at(57) = value;
    CallUnderTest call(backend(), ops::OpKind::sum_squares, t());
    call.output(1, 1, DType::f64);
    call.input(x, DType::f32);
    call.run();
    EXPECT_EQ(std::isfinite(call.read(0).at(0)), value == 1e30) << value;
  }
}

/// A frozen tensor under bf16 has no remainder: it keeps the value alone.
TEST_P(Optimizers, FrozenMastersAreRounded) {
  const int64_t size = 1037;
  const Tensor masters = random_f32(1, size);
  CallUnderTest import(backend(), ops::OpKind::import_master, t());
  import.output(1, size, t());
  import.absent();
  import.input(masters, DType::f32);
  import.run();
  CallUnderTest back(backend(), ops::OpKind::export_master, t());
  back.output(1, size, DType::f32);
  back.bytes_input(import.bytes(0).data(), t(), size);
  back.absent();
  back.run();
  Tensor kept = masters;
  for (double& m : kept.values) {
    if (t() == DType::bf16) m = f32_from_bf16(split_master(static_cast<float>(m)).value);
  }
  expect_close(back.read(0), kept, 0.0);
}

TEST_P(Optimizers, StepControlAndClearPending) {
  const Tensor sums = [] {
    Tensor s(1, ops::kNumSums);
    s.at(0) = 16.0;
    s.at(1) = 12.0;
    s.at(2) = 4.0;
    return s;
  }();
  const Tensor schedule = random_f32(1, 5);
  const Tensor before(1, ops::kControlSize);
  CallUnderTest step(backend(), ops::OpKind::step_control, t());
  step.attributes().max_grad_norm = 0.5;
  step.attributes().beta1 = 0.9;
  step.attributes().beta2 = 0.99;
  step.update(before, DType::f64);
  step.input(sums, DType::f64);
  step.input(schedule, DType::f64);
  step.run();
  Tensor want = before;
  ops::step_control(sums.values.data(), schedule.values.data(), 5, 0.5, 0.9, 0.99,
                    want.values.data());
  expect_close(step.read(0), want, 0.0);

  CallUnderTest clear(backend(), ops::OpKind::clear_pending, t());
  clear.update(step.read(0), DType::f64);
  clear.run();
  want.at(ops::index(ops::Control::pending)) = 0;
  expect_close(clear.read(0), want, 0.0);
}

}  // namespace
}  // namespace trireme::contract
