// AdamW, SGD and the two planes of a bf16 master, over flat ranges. Compiled without contraction
// and written in the CPU's order of operations: equal inputs give equal bits.
#include <bit>

#include "base/math.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"
#include "ops/control.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;  // elements of a thread, where addresses allow

/// The fp32 masters of kCount elements: one plane of f32, or bf16 values and 16-bit remainders
/// (base/dtype.h: split_master, join_master).
template <int kCount>
struct WholeMaster {
  static constexpr int kElements = kCount;
  float* value;

  __device__ void read(int64_t at, float (&master)[kCount]) const {
    const auto pack = load_pack<kCount>(static_cast<const float*>(value + at));
#pragma unroll
    for (int k = 0; k < kCount; ++k) master[k] = pack[k];
  }
  __device__ void write(int64_t at, const float (&master)[kCount]) const {
    store_pack(value + at, master);
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

template <int kCount>
struct SplitPlanes {
  static constexpr int kElements = kCount;
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

/// A frozen master: the rounded value alone.
template <int kCount>
struct RoundedMaster {
  static constexpr int kElements = kCount;
  uint16_t* value;

  __device__ void read(int64_t at, float (&master)[kCount]) const {
    uint16_t high[kCount];
    load_halves(value + at, high);
#pragma unroll
    for (int k = 0; k < kCount; ++k) master[k] = f32_from_bf16(high[k]);
  }
  __device__ void write(int64_t at, const float (&master)[kCount]) const {
    uint16_t high[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) high[k] = split_master(master[k]).value;
    store_halves(value + at, high);
  }
};

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

struct AdamArgs {
  float* m;
  float* v;
  const float* grad;
  const double* control;
  float beta1, beta2, rest1, rest2, eps;
  double weight_decay;
};

/// size is a multiple of the master's elements.
template <typename Master>
__global__ void __launch_bounds__(kThreads)
    adamw_range(Master master, AdamArgs args, int64_t size) {
  constexpr int kCount = Master::kElements;
  const Update update(args.control, args.weight_decay);
  const int64_t at = first_element(kCount);
  if (!update.applies || at >= size) return;
  const auto gradients = load_pack<kCount>(args.grad + at);
  const auto means = load_pack<kCount>(static_cast<const float*>(args.m + at));
  const auto squares = load_pack<kCount>(static_cast<const float*>(args.v + at));
  float values[kCount];
  float new_means[kCount];
  float new_squares[kCount];
  master.read(at, values);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float g = gradients[k] * update.grad_scale;
    const float mean = fmaf(means[k], args.beta1, g * args.rest1);
    const float square = fmaf(squares[k], args.beta2, g * g * args.rest2);
    const float root = sqrtf(square * update.unbias2) + args.eps;
    values[k] = values[k] * update.keep - mean * update.adam_step / root;
    new_means[k] = mean;
    new_squares[k] = square;
  }
  store_pack(args.m + at, new_means);
  store_pack(args.v + at, new_squares);
  master.write(at, values);
}

template <typename Master>
__global__ void __launch_bounds__(kThreads)
    sgd_range(Master master, const float* grad, const double* control, double weight_decay,
              int64_t size) {
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
  master.write(at, values);
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

/// The planes of a call and where its other f32 vectors begin.
struct Range {
  DType dtype;
  TensorView value;
  TensorView remainder;
};

/// body(master, begin, size): whole packs first, then the elements left over. `others` are the
/// vectors beside the master.
template <typename Body, typename... Others>
void for_range(const Range& range, const Body& body, const Others&... others) {
  const int64_t size = range.value.cols;
  const auto aligned = [](const TensorView& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  };
  const bool packed = aligned(range.value) && aligned(range.remainder) && (... && aligned(others));
  const int64_t whole = packed ? size / kWide * kWide : 0;
  const auto part = [&]<int kCount>(std::integral_constant<int, kCount>, int64_t begin,
                                    int64_t count) {
    if (count == 0) return;
    const Grid grid{dim3(blocks(ceil_div(count, int64_t{kThreads} * kCount))), dim3(kThreads)};
    if (range.dtype == DType::f32) {
      body(WholeMaster<kCount>{data_of<float>(range.value) + begin}, grid, begin, count);
    } else if (range.remainder.present()) {
      body(SplitPlanes<kCount>{data_of<uint16_t>(range.value) + begin,
                               data_of<uint16_t>(range.remainder) + begin},
           grid, begin, count);
    } else {
      body(RoundedMaster<kCount>{data_of<uint16_t>(range.value) + begin}, grid, begin, count);
    }
  };
  part(std::integral_constant<int, kWide>{}, 0, whole);
  part(std::integral_constant<int, 1>{}, whole, size - whole);
}

}  // namespace

void adamw(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const auto& a = call.attributes;
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
  const auto body = [&](auto master, const Grid& grid, int64_t begin, int64_t count) {
    args.m = data_of<float>(m) + begin;
    args.v = data_of<float>(v) + begin;
    args.grad = data_of<const float>(grad) + begin;
    launch("adamw", adamw_range<decltype(master)>, grid, stream, master, args, count);
  };
  for_range({call.dtype, call.args[0], call.args[1]}, body, m, v, grad);
}

void sgd(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& grad = call.args[2];
  const auto body = [&](auto master, const Grid& grid, int64_t begin, int64_t count) {
    launch("sgd", sgd_range<decltype(master)>, grid, stream, master,
           data_of<const float>(grad) + begin, data_of<const double>(call.args[3]),
           call.attributes.weight_decay, count);
  };
  for_range({call.dtype, call.args[0], call.args[1]}, body, grad);
}

void import_master(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& from = call.args[2];
  const auto body = [&](auto master, const Grid& grid, int64_t begin, int64_t count) {
    launch("import_master", import_range<decltype(master)>, grid, stream, master,
           data_of<const float>(from) + begin, count);
  };
  for_range({call.dtype, call.args[0], call.args[1]}, body, from);
}

void export_master(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& to = call.args[0];
  const auto body = [&](auto master, const Grid& grid, int64_t begin, int64_t count) {
    launch("export_master", export_range<decltype(master)>, grid, stream, master,
           data_of<float>(to) + begin, count);
  };
  for_range({call.dtype, call.args[1], call.args[2]}, body, to);
}

}  // namespace trireme::cuda
