// AdamW, SGD and the planes of their state, over flat ranges. Compiled without contraction
// and written in the CPU's order of operations: equal inputs give equal bits.
#include <bit>

#include "base/math.h"
#include "base/stochastic_rounding.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"
#include "ops/control.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;  // elements of a thread, where addresses allow

/// A plane of f32. Planes read and write kCount elements.
template <int kCount>
struct WholePlane {
  static constexpr int kElements = kCount;
  static constexpr bool kStochastic = false;
  float* value;

  __device__ void read(int64_t at, float (&values)[kCount]) const {
    const auto pack = load_pack<kCount>(static_cast<const float*>(value + at));
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = pack[k];
  }
  __device__ void write(int64_t at, const float (&values)[kCount]) const {
    store_pack(value + at, values);
  }
};

/// kCount 16-bit elements.
template <int kCount>
__device__ void load_halves(const uint16_t* from, uint16_t (&to)[kCount]) {
  static_assert(kCount == 1 || kCount == 8);
  if constexpr (kCount == 8) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const uint32_t of[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      to[k] = static_cast<uint16_t>(k % 2 == 0 ? of[k / 2] & 0xffffu : of[k / 2] >> 16);
    }
  } else {
    to[0] = *from;
  }
}
template <int kCount>
__device__ void store_halves(uint16_t* to, const uint16_t (&from)[kCount]) {
  static_assert(kCount == 1 || kCount == 8);
  if constexpr (kCount == 8) {
    const auto word = [&](int i) {
      return static_cast<uint32_t>(from[2 * i]) | static_cast<uint32_t>(from[2 * i + 1]) << 16;
    };
    *reinterpret_cast<uint4*>(to) = make_uint4(word(0), word(1), word(2), word(3));
  } else {
    *to = from[0];
  }
}

/// fp32 masters as bf16 values and 16-bit remainders (base/dtype.h: split_master, join_master).
template <int kCount>
struct SplitPlanes {
  static constexpr int kElements = kCount;
  static constexpr bool kStochastic = false;
  uint16_t* value;
  uint16_t* remainder;

  __device__ void read(int64_t at, float (&master)[kCount]) const {
    uint16_t high[kCount];
    uint16_t low[kCount];
    load_halves(value + at, high);
    load_halves(remainder + at, low);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      master[k] = join_master(high[k], static_cast<int16_t>(low[k]));
    }
  }
  __device__ void write(int64_t at, const float (&master)[kCount]) const {
    uint16_t high[kCount];
    uint16_t low[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const SplitMaster split = split_master(master[k]);
      high[k] = split.value;
      low[k] = static_cast<uint16_t>(split.remainder);
    }
    store_halves(value + at, high);
    store_halves(remainder + at, low);
  }
};

/// A plane of bf16, rounded to nearest.
template <int kCount>
struct RoundedPlane {
  static constexpr int kElements = kCount;
  uint16_t* value;

  __device__ void read(int64_t at, float (&values)[kCount]) const {
    uint16_t high[kCount];
    load_halves(value + at, high);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = f32_from_bf16(high[k]);
  }
  __device__ void write(int64_t at, const float (&values)[kCount]) const {
    uint16_t high[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) high[k] = split_master(values[k]).value;
    store_halves(value + at, high);
  }
};

/// A plane of bf16, rounded stochastically (base/stochastic_rounding.h).
template <int kCount>
struct StochasticPlane : RoundedPlane<kCount> {
  static constexpr bool kStochastic = true;

  template <typename Bits>
  __device__ void write(int64_t at, const float (&values)[kCount], const uint32_t (&words)[kCount],
                        Bits bits) const {
    uint16_t high[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) high[k] = bf16_stochastic(values[k], bits(words[k]));
    store_halves(this->value + at, high);
  }
};

/// Writes what an update computed; `bits` picks a plane's random bits of an element's word.
template <typename Plane, int kCount, typename Bits>
__device__ void update_plane(const Plane& plane, int64_t at, const float (&values)[kCount],
                             const uint32_t (&words)[kCount], Bits bits) {
  if constexpr (Plane::kStochastic) {
    plane.write(at, values, words, bits);
  } else {
    plane.write(at, values);
  }
}

/// What every element of an update shares.
struct Update {
  bool applies;
  float grad_scale;
  float learning_rate;
  float keep;  // 1 - learning rate * weight decay
  float adam_step;
  float unbias2;

  __device__ Update(const double* control, double weight_decay) {
    const auto field = [control](ops::Control which) { return control[ops::index(which)]; };
    applies = field(ops::Control::pending) != 0 && field(ops::Control::skip) == 0;
    const double rate = field(ops::Control::learning_rate);
    grad_scale =
        static_cast<float>(field(ops::Control::inv_tokens) * field(ops::Control::clip_coef));
    learning_rate = static_cast<float>(rate);
    keep = static_cast<float>(1.0 - rate * weight_decay);
    adam_step = static_cast<float>(rate / field(ops::Control::bias1));
    unbias2 = static_cast<float>(1.0 / field(ops::Control::bias2));
  }
};

__device__ int64_t first_element(int count) {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * count;
}

/// Where a range lies in the random words of its tensor.
struct RoundingPlace {
  uint64_t stream;
  uint32_t first;
};

/// Random words of the elements from `at` of the range on.
template <int kCount>
__device__ void rounding_words(const RoundingPlace& place, const double* control, int64_t at,
                               uint32_t (&words)[kCount]) {
  const auto update = static_cast<uint64_t>(control[ops::index(ops::Control::updates)]);
  const RoundingKey key = rounding_key(place.stream, update);
  const uint32_t first = place.first + static_cast<uint32_t>(at);
#pragma unroll
  for (int k = 0; k < kCount; ++k) words[k] = rounding_word(key, first + k);
}

struct AdamArgs {
  const float* grad;
  const double* control;
  float beta1, beta2, rest1, rest2, eps;
  double weight_decay;
  RoundingPlace rounding;
};

/// size is a multiple of the planes' elements.
template <typename Master, typename Moment>
__global__ void __launch_bounds__(kThreads)
    adamw_range(Master master, Moment m, Moment v, AdamArgs args, int64_t size) {
  constexpr int kCount = Master::kElements;
  const Update update(args.control, args.weight_decay);
  const int64_t at = first_element(kCount);
  if (!update.applies || at >= size) return;
  const auto gradients = load_pack<kCount>(args.grad + at);
  float means[kCount];
  float squares[kCount];
  float values[kCount];
  m.read(at, means);
  v.read(at, squares);
  master.read(at, values);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float g = gradients[k] * update.grad_scale;
    const float mean = fmaf(means[k], args.beta1, g * args.rest1);
    const float square = fmaf(squares[k], args.beta2, g * g * args.rest2);
    const float root = sqrtf(square * update.unbias2) + args.eps;
    values[k] = values[k] * update.keep - mean * update.adam_step / root;
    means[k] = mean;
    squares[k] = square;
  }
  uint32_t words[kCount];
  if constexpr (Master::kStochastic || Moment::kStochastic) {
    rounding_words(args.rounding, args.control, at, words);
  }
  update_plane(m, at, means, words, [](uint32_t word) { return exp_avg_bits(word); });
  update_plane(v, at, squares, words, [](uint32_t word) { return exp_avg_sq_bits(word); });
  update_plane(master, at, values, words, [](uint32_t word) { return master_bits(word); });
}

template <typename Master>
__global__ void __launch_bounds__(kThreads)
    sgd_range(Master master, const float* grad, const double* control, double weight_decay,
              RoundingPlace rounding, int64_t size) {
  constexpr int kCount = Master::kElements;
  const Update update(control, weight_decay);
  const int64_t at = first_element(kCount);
  if (!update.applies || at >= size) return;
  const auto gradients = load_pack<kCount>(grad + at);
  const auto decay = static_cast<float>(weight_decay);
  float values[kCount];
  master.read(at, values);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float slope = fmaf(values[k], decay, gradients[k] * update.grad_scale);
    values[k] = fmaf(-update.learning_rate, slope, values[k]);
  }
  uint32_t words[kCount];
  if constexpr (Master::kStochastic) rounding_words(rounding, control, at, words);
  update_plane(master, at, values, words, [](uint32_t word) { return master_bits(word); });
}

template <typename Master>
__global__ void __launch_bounds__(kThreads)
    import_range(Master master, const float* from, int64_t size) {
  constexpr int kCount = Master::kElements;
  const int64_t at = first_element(kCount);
  if (at >= size) return;
  const auto pack = load_pack<kCount>(from + at);
  float values[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) values[k] = pack[k];
  master.write(at, values);
}

template <typename Master>
__global__ void __launch_bounds__(kThreads) export_range(Master master, float* to, int64_t size) {
  constexpr int kCount = Master::kElements;
  const int64_t at = first_element(kCount);
  if (at >= size) return;
  float values[kCount];
  master.read(at, values);
  store_pack(to + at, values);
}

/// body(count, grid, begin, size): whole packs of `count` elements first, then what is left over.
/// All `views` are vectors of one size; an absent one counts as aligned.
template <typename Body, typename... Views>
void for_range(const Body& body, const TensorView& first, const Views&... others) {
  const auto aligned = [](const TensorView& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  };
  const bool packed = aligned(first) && (... && aligned(others));
  const int64_t whole = packed ? first.cols / kWide * kWide : 0;
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount> count, int64_t begin,
                                    int64_t size) {
    if (size == 0) return;
    const Grid grid{dim3(blocks(ceil_div(size, int64_t{kThreads} * kCount))), dim3(kThreads)};
    body(count, grid, begin, size);
  };
  part(std::integral_constant<int, kWide>{}, 0, whole);
  part(std::integral_constant<int, 1>{}, whole, first.cols - whole);
}

/// body(planes) with the master in `value` and `remainder` from element `begin` on. `Alone` is the
/// plane of a bf16 master without a remainder.
template <template <int> typename Alone, int kCount, typename Body>
void with_master(DType dtype, const TensorView& value, const TensorView& remainder, int64_t begin,
                 const Body& body) {
  if (dtype == DType::f32) {
    body(WholePlane<kCount>{data_of<float>(value) + begin});
  } else if (remainder.present()) {
    body(SplitPlanes<kCount>{data_of<uint16_t>(value) + begin,
                             data_of<uint16_t>(remainder) + begin});
  } else {
    body(Alone<kCount>{data_of<uint16_t>(value) + begin});
  }
}

template <int kCount, typename Body>
void with_moments(const TensorView& m, const TensorView& v, int64_t begin, const Body& body) {
  if (m.dtype == DType::f32) {
    body(WholePlane<kCount>{data_of<float>(m) + begin},
         WholePlane<kCount>{data_of<float>(v) + begin});
  } else {
    body(StochasticPlane<kCount>{data_of<uint16_t>(m) + begin},
         StochasticPlane<kCount>{data_of<uint16_t>(v) + begin});
  }
}

RoundingPlace rounding_of(const ops::Attributes& a, int64_t begin) {
  return {a.rounding_stream, static_cast<uint32_t>(a.first_element + begin)};
}

}  // namespace

void adamw(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.attributes;
  const TensorView& value = call.args[0];
  const TensorView& remainder = call.args[1];
  const TensorView& m = call.args[2];
  const TensorView& v = call.args[3];
  const TensorView& grad = call.args[4];
  AdamArgs args{};
  args.control = data_of<const double>(call.args[5]);
  args.beta1 = static_cast<float>(a.beta1);
  args.beta2 = static_cast<float>(a.beta2);
  args.rest1 = static_cast<float>(1.0 - a.beta1);
  args.rest2 = static_cast<float>(1.0 - a.beta2);
  args.eps = static_cast<float>(a.eps);
  args.weight_decay = a.weight_decay;
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount>, const Grid& grid,
                                    int64_t begin, int64_t size) {
    args.grad = data_of<const float>(grad) + begin;
    args.rounding = rounding_of(a, begin);
    with_master<StochasticPlane, kCount>(call.dtype, value, remainder, begin, [&](auto master) {
      with_moments<kCount>(m, v, begin, [&](auto m_part, auto v_part) {
        launch("adamw", adamw_range<decltype(master), decltype(m_part)>, grid, stream, master,
               m_part, v_part, args, size);
      });
    });
  };
  for_range(part, value, remainder, m, v, grad);
}

void sgd(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& value = call.args[0];
  const TensorView& remainder = call.args[1];
  const TensorView& grad = call.args[2];
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount>, const Grid& grid,
                                    int64_t begin, int64_t size) {
    with_master<StochasticPlane, kCount>(call.dtype, value, remainder, begin, [&](auto master) {
      launch("sgd", sgd_range<decltype(master)>, grid, stream, master,
             data_of<const float>(grad) + begin, data_of<const double>(call.args[3]),
             call.attributes.weight_decay, rounding_of(call.attributes, begin), size);
    });
  };
  for_range(part, value, remainder, grad);
}

void import_master(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& from = call.args[2];
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount>, const Grid& grid,
                                    int64_t begin, int64_t size) {
    with_master<RoundedPlane, kCount>(
        call.dtype, call.args[0], call.args[1], begin, [&](auto master) {
          launch("import_master", import_range<decltype(master)>, grid, stream, master,
                 data_of<const float>(from) + begin, size);
        });
  };
  for_range(part, call.args[0], call.args[1], from);
}

void export_master(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& to = call.args[0];
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount>, const Grid& grid,
                                    int64_t begin, int64_t size) {
    with_master<RoundedPlane, kCount>(
        call.dtype, call.args[1], call.args[2], begin, [&](auto master) {
          launch("export_master", export_range<decltype(master)>, grid, stream, master,
                 data_of<float>(to) + begin, size);
        });
  };
  for_range(part, call.args[1], call.args[2], to);
}

}  // namespace trireme::cuda
