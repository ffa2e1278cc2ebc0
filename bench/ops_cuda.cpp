// What the operations reach on this machine's GPU at the shapes of a 7.6B model in bf16: the share
// of a large copy's bandwidth for what memory bounds ("of copy"), and of the rate of an 8192^3
// product for the rest ("of product"). Both peers are measured first, in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "accel/cuda_loader.h"
#include "base/math.h"
#include "device/backend_module.h"
#include "ops/control.h"
#include "ops/signature.h"

namespace trireme {
namespace {

using device::Space;
using device::StreamKind;
using ops::OpKind;

constexpr int64_t kTokens = 16384;
constexpr int64_t kSequence = 4096;
constexpr int64_t kHidden = 3584;
constexpr int64_t kFfn = 18944;
constexpr int64_t kVocab = 152064;
constexpr int64_t kChunk = 2048;  // tokens of a chunk of the loss
constexpr int64_t kParameters = int64_t{256} << 20;

/// One GPU, and memory that every benchmark uses anew.
class Gpu {
 public:
  /// `deterministic`: gradients repeat bit for bit.
  explicit Gpu(bool deterministic)
      : maker_(accel::load_cuda()),
        backend_(maker_->open(site_of(deterministic))),
        base_(device().allocate(Space::device, kBytes)),
        noise_(device().allocate(Space::device, kNoise)) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(kNoise / 2);
    for (uint16_t& value : values) value = bf16_from_f32(normal(generator));
    upload(noise_, values.data(), kNoise);
  }

  device::Device& device() { return backend_->device(); }
  device::Backend& backend() { return *backend_; }

  std::byte* take(int64_t bytes) {
    std::byte* taken = base_ + used_;
    used_ += round_up(bytes + 256, 256);
    check(used_ <= kBytes, "a benchmark needs {} bytes", used_);
    return taken;
  }
  void reset() { used_ = 0; }
  /// Pairs of bf16 noise are f32 noise as well: the upper one is its leading half.
  void fill_with_noise(std::byte* to, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kNoise) {
      device().copy(StreamKind::compute, to + at, noise_, std::min(kNoise, bytes - at));
    }
  }
  void upload(std::byte* to, const void* from, int64_t bytes) {
    device().copy(StreamKind::compute, to, from, bytes);
    device().drain();
  }

  /// Seconds of one `launch`, over `runs` of them.
  double seconds(int runs, const std::function<void()>& launch) {
    const int begin = device().stamp(StreamKind::compute);
    for (int i = 0; i < runs; ++i) launch();
    const int end = device().stamp(StreamKind::compute);
    device().drain();
    const double time = device().stamped(end) - device().stamped(begin);
    device().forget_stamps();
    return time / runs;
  }

 private:
  static device::RankSite site_of(bool deterministic) {
    device::RankSite site;
    site.deterministic = deterministic;
    return site;
  }

  static constexpr int64_t kBytes = int64_t{24} << 30;
  static constexpr int64_t kNoise = int64_t{64} << 20;
  std::unique_ptr<device::BackendMaker> maker_;
  std::unique_ptr<device::Backend> backend_;
  std::byte* base_;
  std::byte* noise_;
  int64_t used_ = 0;
};

/// A call with its own operands.
class Call {
 public:
  Call(Gpu& gpu, OpKind kind) : gpu_(gpu) {
    gpu.reset();
    call_.kind = kind;
    call_.dtype = DType::bf16;
  }

  ops::OpCall& get() { return call_; }
  ops::Attributes& attributes() { return call_.attributes; }

  Call& law(ops::Law law) {
    call_.law = law;
    return *this;
  }
  Call& add(DType dtype, int64_t rows, int64_t cols) {
    TensorView& view = next();
    const int64_t bytes = rows * cols * size_of(dtype);
    view = matrix(gpu_.take(bytes), dtype, rows, cols);
    gpu_.fill_with_noise(static_cast<std::byte*>(view.data), bytes);
    return *this;
  }
  template <typename T>
  Call& add_values(DType dtype, const std::vector<T>& values) {
    TensorView& view = next();
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    view = vector(gpu_.take(bytes), dtype, static_cast<int64_t>(values.size()));
    gpu_.upload(static_cast<std::byte*>(view.data), values.data(), bytes);
    return *this;
  }
  Call& add_absent() {
    next();
    return *this;
  }

  /// Seconds of the call, chosen and readied as a run does it.
  void ready() {
    call_.workspace_bytes = gpu_.backend().op_sizing().workspace_bytes(call_);
    call_.workspace = gpu_.take(call_.workspace_bytes);
    gpu_.backend().tune(call_);
    gpu_.backend().prepare(call_);
  }
  double seconds(int runs) {
    return gpu_.seconds(runs, [&] { gpu_.device().launch(StreamKind::compute, call_); });
  }

 private:
  TensorView& next() { return call_.args[static_cast<size_t>(call_.num_args++)]; }
  Gpu& gpu_;
  ops::OpCall call_;
};

struct Peers {
  double copy = 0;     // bytes a second, read and written
  double product = 0;  // FLOP a second
};

std::vector<int32_t> random_ids(int64_t count, int64_t below) {
  std::mt19937 generator(2);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(generator() % static_cast<uint64_t>(below)));
  }
  return ids;
}

std::vector<int32_t> counted(int64_t count, int64_t step, int64_t modulus) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<int32_t>(i * step % modulus));
  return values;
}

/// The three products of a layer with a weight of (outputs, inputs).
Call product(Gpu& gpu, OpKind kind, int64_t tokens, int64_t inputs, int64_t outputs) {
  Call call(gpu, kind);
  const auto bf16 = DType::bf16;
  if (kind == OpKind::linear) {
    call.add(bf16, tokens, outputs).add(bf16, tokens, inputs).add(bf16, outputs, inputs);
  } else if (kind == OpKind::linear_input_grad) {
    call.add(bf16, tokens, inputs).add(bf16, tokens, outputs).add(bf16, outputs, inputs);
  } else {
    call.law(ops::Law::add).add(DType::f32, outputs, inputs);
    call.add(bf16, tokens, outputs).add(bf16, tokens, inputs);
  }
  return call;
}

struct HeadShape {
  int32_t heads, kv_heads, head_dim;
};

Call attention(Gpu& gpu, bool backward, const HeadShape& shape,
               const std::vector<int32_t>& cu_seqlens) {
  Call call(gpu, backward ? OpKind::attention_input_grad : OpKind::attention);
  ops::Attributes& a = call.attributes();
  a.heads = shape.heads;
  a.kv_heads = shape.kv_heads;
  a.head_dim = shape.head_dim;
  a.attention_scale = 0.1f;
  a.even = true;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int32_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    a.longest = std::max(a.longest, length);
    a.even = a.even && length == cu_seqlens[1];
    a.lengths.add(length);
  }
  const int64_t tokens = round_up(cu_seqlens.back(), 64);
  const int64_t qkv = int64_t{shape.heads + 2 * shape.kv_heads} * shape.head_dim;
  const int64_t out = int64_t{shape.heads} * shape.head_dim;
  const auto bf16 = DType::bf16;
  if (backward) {
    call.add(bf16, tokens, qkv).add(bf16, tokens, out).add(bf16, tokens, qkv);
    call.add(bf16, tokens, out)
        .add_values(DType::f32,
                    std::vector<float>(static_cast<size_t>(shape.heads * tokens), 8.0f));
    auto& lse = call.get().args[4];
    lse = matrix(lse.data, DType::f32, shape.heads, tokens);
  } else {
    call.add(bf16, tokens, out).add(DType::f32, shape.heads, tokens).add(bf16, tokens, qkv);
  }
  call.add_values(DType::i32, cu_seqlens);
  return call;
}

/// `narrow`: masters and moments kept as bf16.
Call adamw(Gpu& gpu, bool narrow) {
  Call call(gpu, OpKind::adamw);
  call.attributes().beta1 = 0.9;
  call.attributes().beta2 = 0.999;
  call.attributes().eps = 1e-8;
  std::vector<double> control(ops::kControlSize, 0.5);
  control[ops::index(ops::Control::pending)] = 1;
  control[ops::index(ops::Control::skip)] = 0;
  call.add(DType::bf16, 1, kParameters);
  if (narrow) {
    call.add_absent();
  } else {
    call.add(DType::i16, 1, kParameters);
  }
  for (int moment = 0; moment < 2; ++moment) {
    call.add(narrow ? DType::bf16 : DType::f32, 1, kParameters);
  }
  call.add(DType::f32, 1, kParameters);
  call.add_values(DType::f64, control);
  return call;
}

Call rope(Gpu& gpu, OpKind kind) {
  Call call(gpu, kind);
  call.attributes().heads = 28;
  call.attributes().kv_heads = 4;
  call.attributes().head_dim = 128;
  call.add(DType::bf16, kTokens, 4608);
  call.get().args[static_cast<size_t>(call.get().num_args++)] = call.get().args[0];  // in place
  call.add(DType::f32, kSequence, 128).add_values(DType::i32, counted(kTokens, 1, kSequence));
  return call;
}

using MakeCall = std::function<Call(Gpu&)>;

using Named = std::vector<std::pair<std::string, MakeCall>>;

Call rows(Call call, int count) {
  for (int i = 0; i < count; ++i) call.add(DType::bf16, kTokens, kHidden);
  return call;
}

/// What memory bounds in a block, by name.
Named memory_bound_in_block() {
  const auto bf16 = DType::bf16;
  const auto f32 = DType::f32;
  return {
      {"rms_norm",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::rms_norm);
         call.attributes().eps = 1e-6;
         call.add(bf16, kTokens, kHidden).add(f32, 1, kTokens).add(bf16, kTokens, kHidden);
         return call.add(bf16, 1, kHidden);
       }},
      {"rms_norm_input_grad, add",
       [=](Gpu& gpu) {
         Call call = rows(Call(gpu, OpKind::rms_norm_input_grad).law(ops::Law::add), 3);
         return call.add(bf16, 1, kHidden).add(f32, 1, kTokens);
       }},
      {"rms_norm_weight_grad",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::rms_norm_weight_grad);
         call.law(ops::Law::add).add(f32, 1, kHidden);
         return rows(call, 2).add(f32, 1, kTokens);
       }},
      {"rms_norm_grad, in place",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::rms_norm_grad);
         call.law(ops::Law::add).add(f32, 1, kHidden);
         for (int i = 0; i < 3; ++i) call.add(bf16, kTokens, kHidden);
         call.add(bf16, 1, kHidden).add(f32, 1, kTokens);
         call.get().args[static_cast<size_t>(call.get().num_args++)] = call.get().args[1];
         return call;
       }},
      {"add", [](Gpu& gpu) { return rows(Call(gpu, OpKind::add), 3); }},
      {"swiglu",
       [=](Gpu& gpu) {
         return Call(gpu, OpKind::swiglu).add(bf16, kTokens, kFfn).add(bf16, kTokens, 2 * kFfn);
       }},
      {"swiglu_input_grad, out",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::swiglu_input_grad);
         call.add(bf16, kTokens, 2 * kFfn).add(bf16, kTokens, kFfn).add(bf16, kTokens, kFfn);
         return call.add(bf16, kTokens, 2 * kFfn);
       }},
      {"rope", [](Gpu& gpu) { return rope(gpu, OpKind::rope); }},
      {"rope_input_grad", [](Gpu& gpu) { return rope(gpu, OpKind::rope_input_grad); }},
  };
}

/// What memory bounds elsewhere.
Named memory_bound_in_step() {
  const auto bf16 = DType::bf16;
  const auto f32 = DType::f32;
  const auto targets = random_ids(kChunk, kVocab);
  return {
      {"linear_bias_grad",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::linear_bias_grad);
         return call.law(ops::Law::add).add(f32, 1, 4608).add(bf16, kTokens, 4608);
       }},
      {"embedding",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::embedding);
         call.add(bf16, kTokens, kHidden).add(bf16, kVocab, kHidden);
         return call.add_values(DType::i32, random_ids(kTokens, kVocab));
       }},
      {"embedding_weight_grad",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::embedding_weight_grad);
         call.law(ops::Law::add).add(f32, kVocab, kHidden).add(bf16, kTokens, kHidden);
         call.add_values(DType::i32, counted(kTokens, kVocab / kTokens, kVocab));
         return call.add_values(DType::i32, counted(kTokens, 1, kTokens));
       }},
      {"xent_stats",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::xent_stats);
         call.add(f32, kChunk, 3).add_absent().add(bf16, kChunk, kVocab);
         return call.add_values(DType::i32, targets);
       }},
      {"xent_stats, d_logits",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::xent_stats);
         call.add(f32, kChunk, 3).add(bf16, kChunk, kVocab).add(bf16, kChunk, kVocab);
         return call.add_values(DType::i32, targets);
       }},
      {"xent_grad",
       [=](Gpu& gpu) {
         Call call(gpu, OpKind::xent_grad);
         call.add(bf16, kChunk, kVocab).add(bf16, kChunk, kVocab).add(f32, kChunk, 3);
         return call.add_values(DType::i32, targets);
       }},
      {"sum_squares",
       [=](Gpu& gpu) {
         return Call(gpu, OpKind::sum_squares).add(DType::f64, 1, 1).add(f32, 1, kParameters);
       }},
      {"adamw", [](Gpu& gpu) { return adamw(gpu, false); }},
      {"adamw, bf16 state", [](Gpu& gpu) { return adamw(gpu, true); }},
  };
}

struct Compute {
  std::string name;
  MakeCall make;
  double pairs = 0;
};

std::vector<Compute> compute_bound() {
  std::vector<Compute> all;
  struct Layer {
    const char* name;
    int64_t tokens, inputs, outputs;
  };
  constexpr Layer kLayers[] = {{"qkv", kTokens, kHidden, 4608},
                               {"o", kTokens, kHidden, kHidden},
                               {"gate_up", kTokens, kHidden, 2 * kFfn},
                               {"down", kTokens, kFfn, kHidden},
                               {"head", kChunk, kHidden, kVocab}};
  for (const Layer& l : kLayers) {
    for (const OpKind kind :
         {OpKind::linear, OpKind::linear_input_grad, OpKind::linear_weight_grad}) {
      all.push_back({fmt::format("{} {}", ops::name_of(kind), l.name),
                     [=](Gpu& gpu) { return product(gpu, kind, l.tokens, l.inputs, l.outputs); }});
    }
  }
  const auto even = counted(kTokens / kSequence + 1, kSequence, kTokens + 1);
  constexpr double kPairs = double{kTokens / kSequence} * (double{kSequence} * (kSequence + 1) / 2);
  for (const HeadShape shape : {HeadShape{28, 4, 128}, HeadShape{14, 2, 64}}) {
    for (const bool backward : {false, true}) {
      all.push_back(
          {fmt::format("attention{}, heads of {}", backward ? "_input_grad" : "", shape.head_dim),
           [=](Gpu& gpu) { return attention(gpu, backward, shape, even); }, kPairs});
    }
  }
  return all;
}

/// Rows as instructions have them: half of them below 420 tokens, few of thousands.
std::vector<int32_t> unequal_rows(int count) {
  std::mt19937 generator(3);
  std::lognormal_distribution<double> lengths(std::log(420.0), 0.9);
  std::vector<int32_t> cu_seqlens = {0};
  for (int i = 0; i < count; ++i) {
    const double length = std::clamp(lengths(generator), 16.0, double{kSequence});
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(length));
  }
  return cu_seqlens;
}

double pairs_of(const std::vector<int32_t>& cu_seqlens) {
  double pairs = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const double length = cu_seqlens[s + 1] - cu_seqlens[s];
    pairs += length * (length + 1) / 2;
  }
  return pairs;
}

std::vector<Compute> unequal_attention() {
  std::vector<Compute> all;
  for (const HeadShape shape : {HeadShape{12, 2, 128}, HeadShape{28, 4, 128}}) {
    for (const int rows : {8, 32}) {
      const auto cu_seqlens = unequal_rows(rows);
      for (const bool backward : {false, true}) {
        all.push_back(
            {fmt::format("attention{}, {} heads, {} unequal rows of {} tokens",
                         backward ? "_input_grad" : "", shape.heads, rows, cu_seqlens.back()),
             [=](Gpu& gpu) { return attention(gpu, backward, shape, cu_seqlens); },
             pairs_of(cu_seqlens)});
      }
    }
  }
  return all;
}

/// The head's input gradient for one chunk of the loss: what a choice of chunk rests on.
std::vector<Compute> head_chunks() {
  struct Head {
    const char* model;
    int64_t hidden, vocab;
  };
  constexpr Head kHeads[] = {{"0.5B", 896, 151936},
                             {"1.5B", 1536, 151936},
                             {"3.1B", 2048, 151936},
                             {"7.6B", 3584, 152064}};
  std::vector<Compute> all;
  for (const Head& head : kHeads) {
    for (int64_t tokens = 2048; tokens <= 4608; tokens += 256) {
      all.push_back({fmt::format("linear_input_grad head of {}, {} tokens", head.model, tokens),
                     [=](Gpu& gpu) {
                       return product(gpu, OpKind::linear_input_grad, tokens, head.hidden,
                                      head.vocab);
                     }});
    }
  }
  return all;
}

/// Medians come from --benchmark_repetitions.
template <typename Report>
void measure(benchmark::State& state, Gpu& gpu, const MakeCall& make, const Report& report) {
  Call call = make(gpu);
  call.ready();
  (void)call.seconds(3);
  double total = 0;
  for (auto _ : state) {
    const double seconds = call.seconds(10);
    state.SetIterationTime(seconds);
    total += seconds;
  }
  report(call.get(), total / static_cast<double>(state.iterations()));
}

Peers measure_peers(Gpu& gpu) {
  Peers peers;
  constexpr int64_t kCopied = int64_t{4} << 30;
  gpu.reset();
  std::byte* from = gpu.take(kCopied);
  std::byte* to = gpu.take(kCopied);
  gpu.fill_with_noise(from, kCopied);
  const auto copy = [&] { gpu.device().copy(StreamKind::compute, to, from, kCopied); };
  (void)gpu.seconds(2, copy);
  peers.copy = 2.0 * double{kCopied} / gpu.seconds(10, copy);
  Call square = product(gpu, OpKind::linear, 8192, 8192, 8192);
  square.ready();
  (void)square.seconds(5);
  peers.product = ops::flops(square.get(), 0) / square.seconds(20);
  std::printf("copy of 4 GiB: %.2f TB/s read and written; product of 8192^3: %.0f TFLOP/s\n",
              peers.copy * 1e-12, peers.product * 1e-12);
  return peers;
}

void register_compute(Gpu& gpu, const Peers& peers, const Compute& c, const std::string& name) {
  const auto run = [&gpu, peers, c](benchmark::State& state) {
    measure(state, gpu, c.make, [&](const ops::OpCall& call, double seconds) {
      const double rate = ops::flops(call, c.pairs) / seconds;
      state.counters["TFLOP/s"] = rate * 1e-12;
      state.counters["of product"] = rate / peers.product;
    });
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

/// `repeating`: one whose gradients repeat bit for bit.
void register_all(Gpu& gpu, Gpu& repeating, const Peers& peers) {
  Named memory_bound = memory_bound_in_block();
  for (auto& each : memory_bound_in_step()) memory_bound.push_back(std::move(each));
  for (const auto& [name, make] : memory_bound) {
    const auto run = [&gpu, peers, make = make](benchmark::State& state) {
      measure(state, gpu, make, [&](const ops::OpCall& call, double seconds) {
        const double rate = ops::bytes_moved(call) / seconds;
        state.counters["TB/s"] = rate * 1e-12;
        state.counters["of copy"] = rate / peers.copy;
      });
    };
    benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
  }
  for (const Compute& c : compute_bound()) register_compute(gpu, peers, c, c.name);
  for (const Compute& c : head_chunks()) register_compute(gpu, peers, c, c.name);
  for (const Compute& c : unequal_attention()) {
    register_compute(gpu, peers, c, c.name);
    register_compute(repeating, peers, c, c.name + ", repeating");
  }
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  try {
    trireme::Gpu gpu(false);
    trireme::Gpu repeating(true);
    trireme::register_all(gpu, repeating, trireme::measure_peers(gpu));
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ops_cuda: %s\n", error.what());
    return 1;
  }
  return 0;
}
