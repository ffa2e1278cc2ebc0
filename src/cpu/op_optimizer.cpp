// The step's decisions, the optimizers and the planes of their state.
#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/op_optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/stochastic_rounding.h"
#include "cpu/kernel_parallel.h"
#include "cpu/kernel_vector-inl.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"
#include "ops/control.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu {
namespace HWY_NAMESPACE {

/// A plane of f32.
struct WholePlane {
  float* value;
  template <typename Access>
  HWY_INLINE Vec read(int64_t i, Access access) const {
    return access.read(value + i);
  }
  template <typename Access>
  HWY_INLINE void write(Vec v, int64_t i, Access access) const {
    access.write(v, value + i);
  }
};

/// fp32 masters as bf16 values and remainders (base/dtype.h: split_master, join_master).
struct SplitPlanes {
  uint16_t* value;
  uint16_t* remainder;

  HWY_INLINE Vec read(int64_t i, Whole) const {
    const U32 u;
    const auto high = hn::PromoteTo(u, hn::LoadU(U16(), value + i));
    const auto low = hn::PromoteTo(u, hn::LoadU(U16(), remainder + i));
    const auto carried = hn::Sub(high, hn::ShiftRight<15>(low));
    return hn::BitCast(F32(), hn::Or(hn::ShiftLeft<16>(carried), low));
  }
  HWY_INLINE void write(Vec v, int64_t i, Whole) const {
    const U32 u;
    const auto bits = hn::BitCast(u, v);
    const auto high = hn::ShiftRight<16>(hn::Add(bits, hn::Set(u, 0x8000u)));
    hn::StoreU(hn::TruncateTo(U16(), high), U16(), value + i);
    hn::StoreU(hn::TruncateTo(U16(), hn::And(bits, hn::Set(u, 0xffffu))), U16(), remainder + i);
  }
  HWY_INLINE Vec read(int64_t i, Some some) const {
    float joined[kLanes] = {};
    for (int64_t k = 0; k < some.count; ++k) {
      joined[k] = join_master(value[i + k], static_cast<int16_t>(remainder[i + k]));
    }
    return load(joined);
  }
  HWY_INLINE void write(Vec v, int64_t i, Some some) const {
    float joined[kLanes];
    store(v, joined);
    for (int64_t k = 0; k < some.count; ++k) {
      const SplitMaster split = split_master(joined[k]);
      value[i + k] = split.value;
      remainder[i + k] = static_cast<uint16_t>(split.remainder);
    }
  }
};

/// A plane of bf16, rounded to nearest.
struct RoundedPlane {
  uint16_t* value;

  HWY_INLINE Vec read(int64_t i, Whole) const {
    const U32 u;
    const auto high = hn::PromoteTo(u, hn::LoadU(U16(), value + i));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(high));
  }
  HWY_INLINE void write(Vec v, int64_t i, Whole) const {
    const U32 u;
    const auto high = hn::ShiftRight<16>(hn::Add(hn::BitCast(u, v), hn::Set(u, 0x8000u)));
    hn::StoreU(hn::TruncateTo(U16(), high), U16(), value + i);
  }
  HWY_INLINE Vec read(int64_t i, Some some) const {
    float wide[kLanes] = {};
    for (int64_t k = 0; k < some.count; ++k) wide[k] = f32_from_bf16(value[i + k]);
    return load(wide);
  }
  HWY_INLINE void write(Vec v, int64_t i, Some some) const {
    float wide[kLanes];
    store(v, wide);
    for (int64_t k = 0; k < some.count; ++k) value[i + k] = split_master(wide[k]).value;
  }
};

/// A plane of bf16, rounded with 16 random bits a lane (base/stochastic_rounding.h).
struct StochasticPlane {
  uint16_t* value;

  template <typename Access>
  HWY_INLINE Vec read(int64_t i, Access access) const {
    return access.read(value + i);
  }
  HWY_INLINE void write(Vec v, hn::Vec<U32> random16, int64_t i, Whole) const {
    hn::StoreU(rounded(v, random16), U16(), value + i);
  }
  HWY_INLINE void write(Vec v, hn::Vec<U32> random16, int64_t i, Some some) const {
    uint16_t padded[kLanes];
    hn::StoreU(rounded(v, random16), U16(), padded);
    std::copy_n(padded, some.count, value + i);
  }

 private:
  static HWY_INLINE hn::Vec<U16> rounded(Vec v, hn::Vec<U32> random16) {
    const U32 u;
    const auto bits = hn::BitCast(u, v);
    const auto magnitude = hn::And(bits, hn::Set(u, 0x7fffffffu));
    const auto carry = hn::IfThenZeroElse(hn::Gt(magnitude, hn::Set(u, 0x7f7effffu)), random16);
    const auto quiet =
        hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(u, 0x7f800000u)), hn::Set(u, 0x400000u));
    const auto sum = hn::Or(hn::Add(bits, carry), quiet);
    return hn::TruncateTo(U16(), hn::ShiftRight<16>(sum));
  }
};

/// Writes what an update computed; only a stochastic plane looks at its bits.
template <typename Plane, typename Access>
HWY_INLINE void update_plane(const Plane& plane, Vec v, hn::Vec<U32> random16, int64_t i,
                             Access access) {
  if constexpr (std::is_same_v<Plane, StochasticPlane>) {
    plane.write(v, random16, i, access);
  } else {
    plane.write(v, i, access);
  }
}

/// Random words of the lanes from element i of a call on (base/stochastic_rounding.h).
class RoundingWords {
 public:
  RoundingWords(const ops::Attributes& attributes, const double* control)
      : key_(rounding_key(attributes.rounding_stream,
                          static_cast<uint64_t>(control[ops::index(ops::Control::updates)]))),
        first_(static_cast<uint32_t>(attributes.first_element)) {}

  HWY_INLINE hn::Vec<U32> at(int64_t i) const {
    const U32 u;
    const auto element = hn::Iota(u, first_ + static_cast<uint32_t>(i));
    auto x = hn::Add(hn::Mul(element, hn::Set(u, kRoundingSpread)), hn::Set(u, key_.first));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u, kRoundingMultiply1));
    x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u, key_.second));
    x = hn::Mul(x, hn::Set(u, kRoundingMultiply2));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }
  static HWY_INLINE hn::Vec<U32> master(hn::Vec<U32> word) { return hn::ShiftRight<16>(word); }
  static HWY_INLINE hn::Vec<U32> exp_avg(hn::Vec<U32> word) {
    return hn::And(word, hn::Set(U32(), 0xffffu));
  }
  static HWY_INLINE hn::Vec<U32> exp_avg_sq(hn::Vec<U32> word) {
    return hn::ShiftRight<16>(hn::Mul(word, hn::Set(U32(), kRoundingMultiply2)));
  }

 private:
  RoundingKey key_;
  uint32_t first_;
};

/// body(plane) with the master of an update, in arguments 0 and 1.
template <typename Body>
void with_master(const ops::OpCall& call, const Body& body) {
  if (call.dtype == DType::f32) {
    body(WholePlane{data_of<float>(call.args[0])});
  } else if (call.args[1].present()) {
    body(SplitPlanes{data_of<uint16_t>(call.args[0]), data_of<uint16_t>(call.args[1])});
  } else {
    body(StochasticPlane{data_of<uint16_t>(call.args[0])});
  }
}

/// body(m, v) with the moments.
template <typename Body>
void with_moments(const ops::OpCall& call, const Body& body) {
  if (call.args[2].dtype == DType::f32) {
    body(WholePlane{data_of<float>(call.args[2])}, WholePlane{data_of<float>(call.args[3])});
  } else {
    body(StochasticPlane{data_of<uint16_t>(call.args[2])},
         StochasticPlane{data_of<uint16_t>(call.args[3])});
  }
}

/// body(plane) with the state that arguments `value` and `value` + 1 import or export.
template <typename Body>
void with_state(const ops::OpCall& call, size_t value, const Body& body) {
  if (call.dtype == DType::f32) {
    body(WholePlane{data_of<float>(call.args[value])});
  } else if (call.args[value + 1].present()) {
    body(SplitPlanes{data_of<uint16_t>(call.args[value]), data_of<uint16_t>(call.args[value + 1])});
  } else {
    body(RoundedPlane{data_of<uint16_t>(call.args[value])});
  }
}

/// Elements of a thread's ranges come in multiples of this.
inline constexpr int64_t kGrain = 1024;

/// What every element of an update shares; false when the update must not be applied.
struct Update {
  float grad_scale;
  float learning_rate;
  float keep;  // 1 - learning rate * weight decay
  bool read(const ops::OpCall& call, const double* control) {
    const auto field = [control](ops::Control which) { return control[ops::index(which)]; };
    if (field(ops::Control::pending) == 0 || field(ops::Control::skip) != 0) return false;
    const double rate = field(ops::Control::learning_rate);
    grad_scale =
        static_cast<float>(field(ops::Control::inv_tokens) * field(ops::Control::clip_coef));
    learning_rate = static_cast<float>(rate);
    keep = static_cast<float>(1.0 - rate * call.attributes.weight_decay);
    return true;
  }
};

void adamw_range(const ops::OpCall& call, OpContext& context) {
  const auto* control = data_of<double>(call.args[5]);
  Update update;
  if (!update.read(call, control)) return;
  const auto& attributes = call.attributes;
  const F32 f;
  const auto constant = [&](double value) { return hn::Set(f, static_cast<float>(value)); };
  const Vec scale = hn::Set(f, update.grad_scale);
  const Vec keep = hn::Set(f, update.keep);
  const Vec beta1 = constant(attributes.beta1);
  const Vec beta2 = constant(attributes.beta2);
  const Vec rest1 = constant(1.0 - attributes.beta1);
  const Vec rest2 = constant(1.0 - attributes.beta2);
  const Vec eps = constant(attributes.eps);
  const Vec unbias2 = constant(1.0 / control[ops::index(ops::Control::bias2)]);
  const Vec step = constant(control[ops::index(ops::Control::learning_rate)] /
                            control[ops::index(ops::Control::bias1)]);
  const auto* grad = data_of<float>(call.args[4]);
  const RoundingWords words(attributes, control);
  const auto range = [&](auto master, auto m, auto v, int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](int64_t i, auto access) {
      const auto word = words.at(i);
      const Vec g = hn::Mul(access.read(grad + i), scale);
      const Vec mean = hn::MulAdd(m.read(i, access), beta1, hn::Mul(g, rest1));
      const Vec square = hn::MulAdd(v.read(i, access), beta2, hn::Mul(hn::Mul(g, g), rest2));
      update_plane(m, mean, RoundingWords::exp_avg(word), i, access);
      update_plane(v, square, RoundingWords::exp_avg_sq(word), i, access);
      const Vec root = hn::Add(hn::Sqrt(hn::Mul(square, unbias2)), eps);
      const Vec kept = hn::Mul(master.read(i, access), keep);
      update_plane(master, hn::Sub(kept, hn::Div(hn::Mul(mean, step), root)),
                   RoundingWords::master(word), i, access);
    });
  };
  const int64_t size = call.args[0].cols;
  with_master(call, [&](auto master) {
    with_moments(call, [&](auto m, auto v) {
      parallel_ranges(context.num_threads(), size, kGrain, size,
                      [&](int64_t begin, int64_t end) { range(master, m, v, begin, end); });
    });
  });
}

void sgd_range(const ops::OpCall& call, OpContext& context) {
  const auto* control = data_of<double>(call.args[3]);
  Update update;
  if (!update.read(call, control)) return;
  const F32 f;
  const Vec scale = hn::Set(f, update.grad_scale);
  const Vec rate = hn::Set(f, update.learning_rate);
  const Vec decay = hn::Set(f, static_cast<float>(call.attributes.weight_decay));
  const auto* grad = data_of<float>(call.args[2]);
  const RoundingWords words(call.attributes, control);
  const int64_t size = call.args[0].cols;
  with_master(call, [&](auto master) {
    parallel_ranges(context.num_threads(), size, kGrain, size, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto access) {
        const Vec old = master.read(i, access);
        const Vec slope = hn::MulAdd(old, decay, hn::Mul(access.read(grad + i), scale));
        update_plane(master, hn::NegMulAdd(rate, slope, old), RoundingWords::master(words.at(i)), i,
                     access);
      });
    });
  });
}

void import_range(const ops::OpCall& call, OpContext& context) {
  const auto* from = data_of<float>(call.args[2]);
  const int64_t size = call.args[2].cols;
  with_state(call, 0, [&](auto plane) {
    parallel_ranges(context.num_threads(), size, kGrain, size, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end,
                  [&](int64_t i, auto access) { plane.write(access.read(from + i), i, access); });
    });
  });
}

void export_range(const ops::OpCall& call, OpContext& context) {
  auto* to = data_of<float>(call.args[0]);
  const int64_t size = call.args[0].cols;
  with_state(call, 1, [&](auto plane) {
    parallel_ranges(context.num_threads(), size, kGrain, size, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end,
                  [&](int64_t i, auto access) { access.write(plane.read(i, access), to + i); });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

void step_control(const ops::OpCall& call, OpContext&) {
  const auto& a = call.attributes;
  ops::step_control(data_of<double>(call.args[1]), data_of<double>(call.args[2]), call.args[2].cols,
                    a.max_grad_norm, a.beta1, a.beta2, data_of<double>(call.args[0]));
}

void clear_pending(const ops::OpCall& call, OpContext&) {
  data_of<double>(call.args[0])[ops::index(ops::Control::pending)] = 0;
}

HWY_EXPORT(adamw_range);
void adamw(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(adamw_range)(call, context);
}

HWY_EXPORT(sgd_range);
void sgd(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(sgd_range)(call, context);
}

HWY_EXPORT(import_range);
void import_master(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(import_range)(call, context);
}

HWY_EXPORT(export_range);
void export_master(const ops::OpCall& call, OpContext& context) {
  HWY_DYNAMIC_DISPATCH(export_range)(call, context);
}

}  // namespace trireme::cpu
#endif
