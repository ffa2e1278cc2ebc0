// What the CPU's operations reach at training shapes: GFLOP/s of products and attention, GB/s of
// what memory bounds. The last argument of every benchmark is the number of threads.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/math.h"
#include "cpu/op_table.h"
#include "ops/control.h"
#include "ops/signature.h"

namespace trireme {
namespace {

/// A call with its own random operands.
class Bench {
 public:
  Bench(ops::OpKind kind, DType dtype, int num_threads)
      : context_(num_threads), sizing_(num_threads) {
    call_.kind = kind;
    call_.dtype = dtype;
  }

  ops::OpCall& call() { return call_; }

  TensorView& add(DType dtype, int64_t rows, int64_t cols) {
    auto& view = call_.args[static_cast<size_t>(call_.num_args++)];
    view = matrix(allocate(rows * cols * size_of(dtype)), dtype, rows, cols);
    if (dtype == DType::f32) {
      for (int64_t i = 0; i < rows * cols; ++i) view.as<float>()[i] = normal_(generator_);
    } else if (dtype == DType::bf16) {
      for (int64_t i = 0; i < rows * cols; ++i) {
        view.as<uint16_t>()[i] = bf16_from_f32(normal_(generator_));
      }
    }
    return view;
  }
  TensorView& add_absent() { return call_.args[static_cast<size_t>(call_.num_args++)]; }

  void run(benchmark::State& state, double pairs = 0) {
    call_.workspace_bytes = sizing_.workspace_bytes(call_);
    call_.workspace = allocate(call_.workspace_bytes);
    cpu::run(call_, context_);
    for (auto _ : state) cpu::run(call_, context_);
    const auto rate = [&](double amount) {
      return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    };
    state.counters["GFLOP/s"] = rate(ops::flops(call_, pairs));
    state.counters["GB/s"] = rate(ops::bytes_moved(call_));
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void* allocate(int64_t bytes) {
    memory_.emplace_back(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes + 64, 64))));
    return memory_.back().get();
  }

  ops::OpCall call_;
  cpu::OpContext context_;
  cpu::OpSizing sizing_;
  std::vector<std::unique_ptr<void, Free>> memory_;
  std::mt19937 generator_{1};
  std::normal_distribution<float> normal_;
};

DType dtype_of(bool bf16) { return bf16 ? DType::bf16 : DType::f32; }

/// Args: bf16, tokens, inputs, outputs, threads. y = x · weight^T.
void linear(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::linear, t, static_cast<int>(state.range(4)));
  bench.add(t, state.range(1), state.range(3));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(3), state.range(2));
  bench.run(state);
}

void linear_input_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::linear_input_grad, t, static_cast<int>(state.range(4)));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), state.range(3));
  bench.add(t, state.range(3), state.range(2));
  bench.run(state);
}

void linear_weight_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::linear_weight_grad, t, static_cast<int>(state.range(4)));
  bench.call().law = ops::Law::add;
  bench.add(DType::f32, state.range(3), state.range(2));
  bench.add(t, state.range(1), state.range(3));
  bench.add(t, state.range(1), state.range(2));
  bench.run(state);
}

void product_shapes(benchmark::internal::Benchmark* bench) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const int bf16 : {0, 1}) {
    bench->Args({bf16, 4096, 768, 1536, threads});   // queries, keys, values
    bench->Args({bf16, 4096, 768, 4096, threads});   // gate and up
    bench->Args({bf16, 4096, 2048, 768, threads});   // down
    bench->Args({bf16, 1024, 768, 32000, threads});  // a chunk of the head
  }
}
BENCHMARK(linear)->Apply(product_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(linear_input_grad)->Apply(product_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(linear_weight_grad)->Apply(product_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);

/// Args: bf16, sequences, length, heads, kv_heads, head_dim, threads. FLOPs are those of the
/// visible pairs alone.
void attention_call(benchmark::State& state, bool backward) {
  const DType t = dtype_of(state.range(0) != 0);
  const int64_t sequences = state.range(1), length = state.range(2), heads = state.range(3),
                kv_heads = state.range(4), head_dim = state.range(5);
  const int64_t tokens = sequences * length;
  const int64_t qkv_cols = (heads + 2 * kv_heads) * head_dim;
  std::vector<int32_t> cu_seqlens;
  for (int64_t s = 0; s <= sequences; ++s) cu_seqlens.push_back(static_cast<int32_t>(s * length));

  const auto fill = [&](Bench& bench) {
    auto& a = bench.call().attributes;
    a.heads = static_cast<int32_t>(heads);
    a.kv_heads = static_cast<int32_t>(kv_heads);
    a.head_dim = static_cast<int32_t>(head_dim);
    a.longest = static_cast<int32_t>(length);
    a.attention_scale = 0.1f;
  };
  const double pairs =
      static_cast<double>(sequences) * static_cast<double>(length * (length + 1) / 2);
  const auto kind = backward ? ops::OpKind::attention_input_grad : ops::OpKind::attention;
  Bench bench(kind, t, static_cast<int>(state.range(6)));
  fill(bench);
  if (backward) {
    bench.add(t, tokens, qkv_cols);
    bench.add(t, tokens, heads * head_dim);
    bench.add(t, tokens, qkv_cols);
    bench.add(t, tokens, heads * head_dim);
    auto& lse = bench.add(DType::f32, heads, tokens);
    for (int64_t i = 0; i < lse.size(); ++i) lse.as<float>()[i] = 8.0f;
  } else {
    bench.add(t, tokens, heads * head_dim);
    bench.add(DType::f32, heads, tokens);
    bench.add(t, tokens, qkv_cols);
  }
  bench.call().args[static_cast<size_t>(bench.call().num_args++)] =
      vector(cu_seqlens.data(), DType::i32, sequences + 1);
  bench.run(state, pairs);
}
void attention(benchmark::State& state) { attention_call(state, false); }
void attention_input_grad(benchmark::State& state) { attention_call(state, true); }

void attention_shapes(benchmark::internal::Benchmark* bench) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const int bf16 : {0, 1}) {
    bench->Args({bf16, 4, 1024, 12, 12, 64, 1});
    bench->Args({bf16, 4, 1024, 12, 12, 64, threads});
    bench->Args({bf16, 4, 1024, 12, 4, 64, threads});
    bench->Args({bf16, 4, 1024, 6, 2, 128, threads});
    bench->Args({bf16, 1, 4096, 12, 2, 64, threads});
    bench->Args({bf16, 64, 64, 12, 4, 64, threads});
    bench->Args({bf16, 256, 16, 12, 4, 64, threads});
  }
}
BENCHMARK(attention)->Apply(attention_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(attention_input_grad)
    ->Apply(attention_shapes)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Args: bf16, tokens, hidden, threads.
void rms_norm(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::rms_norm, t, static_cast<int>(state.range(3)));
  bench.add(t, state.range(1), state.range(2));
  bench.add(DType::f32, 1, state.range(1));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, 1, state.range(2));
  bench.run(state);
}
void rms_norm_input_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::rms_norm_input_grad, t, static_cast<int>(state.range(3)));
  for (int i = 0; i < 3; ++i) bench.add(t, state.range(1), state.range(2));
  bench.add(t, 1, state.range(2));
  bench.add(DType::f32, 1, state.range(1));
  bench.run(state);
}
void rms_norm_weight_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::rms_norm_weight_grad, t, static_cast<int>(state.range(3)));
  bench.add(DType::f32, 1, state.range(2));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), state.range(2));
  bench.add(DType::f32, 1, state.range(1));
  bench.run(state);
}
void swiglu(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::swiglu, t, static_cast<int>(state.range(3)));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), 2 * state.range(2));
  bench.run(state);
}
void swiglu_input_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::swiglu_input_grad, t, static_cast<int>(state.range(3)));
  bench.add(t, state.range(1), 2 * state.range(2));
  bench.add_absent();
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), 2 * state.range(2));
  bench.run(state);
}
void add(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::add, t, static_cast<int>(state.range(3)));
  for (int i = 0; i < 3; ++i) bench.add(t, state.range(1), state.range(2));
  bench.run(state);
}
/// Heads of 64 elements, half as many for keys and for values, that fill a row.
void set_heads(Bench& bench, int64_t cols) {
  auto& a = bench.call().attributes;
  a.head_dim = 64;
  a.heads = static_cast<int32_t>(cols / 128);
  a.kv_heads = a.heads / 2;
}
void qk_norm(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::qk_norm, t, static_cast<int>(state.range(3)));
  set_heads(bench, state.range(2));
  for (int i = 0; i < 2; ++i) bench.add(t, state.range(1), state.range(2));
  bench.add(t, 2, 64);
  bench.run(state);
}
void qk_norm_input_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::qk_norm_input_grad, t, static_cast<int>(state.range(3)));
  set_heads(bench, state.range(2));
  for (int i = 0; i < 3; ++i) bench.add(t, state.range(1), state.range(2));
  bench.add(t, 2, 64);
  bench.run(state);
}
void qk_norm_weight_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::qk_norm_weight_grad, t, static_cast<int>(state.range(3)));
  set_heads(bench, state.range(2));
  bench.add(DType::f32, 2, 64);
  for (int i = 0; i < 2; ++i) bench.add(t, state.range(1), state.range(2));
  bench.run(state);
}
void rope(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::rope, t, static_cast<int>(state.range(3)));
  set_heads(bench, state.range(2));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), state.range(2));
  bench.add(DType::f32, state.range(1), 64);
  auto& positions = bench.add(DType::i32, 1, state.range(1));
  for (int64_t i = 0; i < state.range(1); ++i) {
    positions.as<int32_t>()[i] = static_cast<int32_t>(i % 1024);
  }
  bench.run(state);
}
void row_shapes(benchmark::internal::Benchmark* bench) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const int bf16 : {0, 1}) bench->Args({bf16, 4096, 1536, threads});
}
BENCHMARK(rms_norm)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rms_norm_input_grad)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rms_norm_weight_grad)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(swiglu)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(swiglu_input_grad)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(add)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(qk_norm)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(qk_norm_input_grad)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(qk_norm_weight_grad)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rope)->Apply(row_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// Args: bf16, tokens, vocabulary, threads.
void random_targets(TensorView& targets, int64_t vocabulary) {
  std::mt19937 generator(2);
  for (int64_t i = 0; i < targets.size(); ++i) {
    targets.as<int32_t>()[i] =
        static_cast<int32_t>(generator() % static_cast<uint32_t>(vocabulary));
  }
}
void xent_stats(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::xent_stats, t, static_cast<int>(state.range(3)));
  bench.add(DType::f32, state.range(1), 3);
  bench.add_absent();
  bench.add(t, state.range(1), state.range(2));
  random_targets(bench.add(DType::i32, 1, state.range(1)), state.range(2));
  bench.run(state);
}
void xent_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::xent_grad, t, static_cast<int>(state.range(3)));
  bench.add(t, state.range(1), state.range(2));
  bench.add(t, state.range(1), state.range(2));
  auto& stats = bench.add(DType::f32, state.range(1), 3);
  for (int64_t i = 0; i < stats.size(); ++i) stats.as<float>()[i] = 5.0f;
  random_targets(bench.add(DType::i32, 1, state.range(1)), state.range(2));
  bench.run(state);
}
void embedding_weight_grad(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  Bench bench(ops::OpKind::embedding_weight_grad, t, static_cast<int>(state.range(3)));
  bench.call().law = ops::Law::add;
  const int64_t tokens = state.range(1);
  bench.add(DType::f32, state.range(2), 768);
  bench.add(t, tokens, 768);
  auto& ids = bench.add(DType::i32, 1, tokens);
  auto& order = bench.add(DType::i32, 1, tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    ids.as<int32_t>()[i] = static_cast<int32_t>(i * (state.range(2) / tokens));
    order.as<int32_t>()[i] = static_cast<int32_t>(i);
  }
  bench.run(state);
}
void head_shapes(benchmark::internal::Benchmark* bench) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const int bf16 : {0, 1}) bench->Args({bf16, 1024, 32000, threads});
}
BENCHMARK(xent_stats)->Apply(head_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(xent_grad)->Apply(head_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(embedding_weight_grad)->Apply(head_shapes)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// Args: bf16, parameters, threads.
void adamw(benchmark::State& state) {
  const DType t = dtype_of(state.range(0) != 0);
  const int64_t size = state.range(1);
  Bench bench(ops::OpKind::adamw, t, static_cast<int>(state.range(2)));
  auto& a = bench.call().attributes;
  a.beta1 = 0.9;
  a.beta2 = 0.999;
  a.eps = 1e-8;
  bench.add(t, 1, size);
  if (t == DType::bf16) {
    bench.add(DType::i16, 1, size);
  } else {
    bench.add_absent();
  }
  bench.add(DType::f32, 1, size);
  auto& v = bench.add(DType::f32, 1, size);
  for (int64_t i = 0; i < size; ++i) v.as<float>()[i] = 1.0f;
  bench.add(DType::f32, 1, size);
  auto* control = bench.add(DType::f64, 1, ops::kControlSize).as<double>();
  for (int i = 0; i < ops::kControlSize; ++i) control[i] = 0.5;
  control[ops::index(ops::Control::pending)] = 1;
  control[ops::index(ops::Control::skip)] = 0;
  bench.run(state);
}
void sum_squares(benchmark::State& state) {
  Bench bench(ops::OpKind::sum_squares, DType::f32, static_cast<int>(state.range(2)));
  bench.add(DType::f64, 1, 1);
  bench.add(DType::f32, 1, state.range(1));
  bench.run(state);
}
void flat_shapes(benchmark::internal::Benchmark* bench) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const int bf16 : {0, 1}) bench->Args({bf16, 16 << 20, threads});
}
BENCHMARK(adamw)->Apply(flat_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(sum_squares)->Apply(flat_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
