// A whole training step of a model of 100 million parameters (Qwen2: 12 blocks, hidden 768, 12
// query and 4 key heads, 2048 in the feed-forward, vocabulary 16,384, untied), sequence 1024,
// micro-batch 4, AdamW, one rank: tokens/s, and the share of the rate at which oneDNN alone
// multiplies the model's own shapes on the same threads in the same run.
//
// FLOP a token = 6 N (N without the input embedding) + 6 layers · hidden · sequence (causal
// attention, forward and backward). Of the steps the fastest counts, and of oneDNN's products the
// fastest run each. The share is also given in seconds of processors instead of the clock's: that
// one means something on a machine with other users.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/op_matmul.h"
#include "launch/process.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme {
namespace {

/// Seconds of the clock, and of this process on processors.
struct Cost {
  double wall = std::numeric_limits<double>::infinity();
  double cpu = std::numeric_limits<double>::infinity();
};

Cost now() {
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

/// The smaller of `best` and what passed from `begin` to `end`.
Cost better(const Cost& best, const Cost& begin, const Cost& end) {
  return {std::min(best.wall, end.wall - begin.wall), std::min(best.cpu, end.cpu - begin.cpu)};
}

constexpr int64_t kSequence = 1024;
constexpr int64_t kSequences = 4;
constexpr int64_t kTokens = kSequence * kSequences;
constexpr testing::TinyModel kModel = {.hidden = 768,
                                       .layers = 12,
                                       .heads = 12,
                                       .kv_heads = 4,
                                       .head_dim = 64,
                                       .ffn = 2048,
                                       .vocab = 16384};

// oneDNN alone ------------------------------------------------------------------------------------

/// Products of one forward pass: inputs and outputs of a weight, and how many such weights.
struct Shape {
  int64_t in, out, count;
};
constexpr std::array<Shape, 5> kShapes = {{
    {kModel.hidden, (kModel.heads + 2 * kModel.kv_heads) * kModel.head_dim, kModel.layers},
    {kModel.heads * kModel.head_dim, kModel.hidden, kModel.layers},
    {kModel.hidden, 2 * kModel.ffn, kModel.layers},
    {kModel.ffn, kModel.hidden, kModel.layers},
    {kModel.hidden, kModel.vocab, 1},
}};

constexpr int64_t num_weights() {
  int64_t sum = 0;
  for (const Shape& shape : kShapes) sum += shape.in * shape.out * shape.count;
  return sum;
}

class Operand {
 public:
  Operand(DType dtype, int64_t size)
      : memory_(std::aligned_alloc(64, static_cast<size_t>(size * size_of(dtype)))) {
    for (int64_t i = 0; i < size; ++i) {
      const float value = static_cast<float>(i % 1013) * 1e-3f - 0.5f;
      if (dtype == DType::f32) static_cast<float*>(memory_.get())[i] = value;
      if (dtype == DType::bf16) static_cast<uint16_t*>(memory_.get())[i] = bf16_from_f32(value);
    }
  }
  void* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

/// The fastest of a few runs of c(m, n) = a(m, k) · weight(n, k)^T, all row-major: the
/// product of a forward pass, which oneDNN does faster than the other two of a step.
Cost product_cost(DType dtype, int threads, int64_t m, int64_t n, int64_t k) {
  constexpr int kRuns = 5;
  cpu::MatmulCache products(threads);
  const cpu::Product product{.m = m,
                             .n = n,
                             .k = k,
                             .a_row = k,
                             .a_column = 1,
                             .b_row = 1,
                             .b_column = k,
                             .c_row = n,
                             .input = dtype,
                             .output = dtype};
  const Operand a(dtype, m * k), b(dtype, k * n), c(dtype, m * n);
  Cost best;
  for (int run = 0; run <= kRuns; ++run) {  // the first makes the primitive
    const Cost begin = now();
    products.run(product, {.a = a.get(), .b = b.get(), .c = c.get()}, nullptr, 0);
    if (run > 0) best = better(best, begin, now());
  }
  return best;
}

/// The products of a forward pass.
Cost onednn_cost(DType dtype, int threads) {
  Cost sum{0, 0};
  for (const Shape& shape : kShapes) {
    const auto count = static_cast<double>(shape.count);
    const Cost one = product_cost(dtype, threads, kTokens, shape.out, shape.in);
    sum = {sum.wall + count * one.wall, sum.cpu + count * one.cpu};
  }
  return sum;
}

// The step ----------------------------------------------------------------------------------------

/// The fastest step, the first left out.
Cost step_cost(bool bf16, int threads) {
  constexpr int kSteps = 5;
  const data::Dataset dataset = testing::random_dataset(
      std::vector<int64_t>(static_cast<size_t>(kSequences), kSequence), kModel.vocab, 1);
  testing::RigOptions options;
  options.model = testing::tiny_model(kModel);
  options.dataset = &dataset;
  options.num_threads = threads;
  options.runs_ahead = true;
  options.final_state = false;
  options.config.bf16 = bf16;
  options.config.max_seq_length = kSequence;
  options.config.per_device_train_batch_size = kSequences;
  options.config.max_steps = kSteps;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  Cost best, before;
  options.after_step = [&](train::Session&, int, int64_t step, const auto&) {
    const Cost end = now();
    if (step > 0) best = better(best, before, end);
    before = end;
  };
  testing::train(options);
  return best;
}

/// Args: bf16, threads.
void step(benchmark::State& state) {
  const bool bf16 = state.range(0) != 0;
  const int threads = static_cast<int>(state.range(1));
  const DType dtype = bf16 ? DType::bf16 : DType::f32;
  const auto tokens = static_cast<double>(kTokens);
  const double step_flop =
      6.0 * static_cast<double>(num_weights() + kModel.layers * kModel.hidden * kSequence) * tokens;
  const double forward_flop = 2.0 * static_cast<double>(num_weights()) * tokens;
  for (auto _ : state) {
    const Cost early = onednn_cost(dtype, threads);
    const Cost ours = step_cost(bf16, threads);
    const Cost peer = better(early, {0, 0}, onednn_cost(dtype, threads));
    const double passes = step_flop / forward_flop;  // a step's work in forward passes' products
    state.SetIterationTime(ours.wall);
    state.counters["tokens/s"] = tokens / ours.wall;
    state.counters["GFLOP/s"] = step_flop / ours.wall * 1e-9;
    state.counters["oneDNN GFLOP/s"] = forward_flop / peer.wall * 1e-9;
    state.counters["share"] = passes * peer.wall / ours.wall;
    state.counters["share of CPU"] = passes * peer.cpu / ours.cpu;
  }
}
BENCHMARK(step)
    ->ArgsProduct({{0, 1}, {static_cast<int64_t>(std::thread::hardware_concurrency())}})
    ->ArgNames({"bf16", "threads"})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  trireme::launch::restart_with_passive_waits(argv);  // as `trireme` does
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
