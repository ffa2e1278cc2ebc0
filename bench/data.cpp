// What the data path costs beside a step: shuffling an epoch, packing samples, finding the capacity
// of a run, building a descriptor, reading rows of ids.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/file.h"
#include "data/batch_source.h"

namespace trireme::data {
namespace {

constexpr double kMillion = 1e6;

benchmark::Counter rate(double amount) {
  return {amount, benchmark::Counter::kIsIterationInvariantRate};
}

std::vector<int32_t> random_lengths(int64_t count) {
  std::mt19937 random(5);
  std::lognormal_distribution<double> length(5.6, 1.0);
  std::vector<int32_t> result(static_cast<size_t>(count));
  for (int32_t& x : result) x = 1 + static_cast<int32_t>(std::min(length(random), 4095.0));
  return result;
}

void shuffle_epoch(benchmark::State& state) {
  std::vector<int32_t> order(static_cast<size_t>(state.range(0)));
  uint64_t seed = 0;
  for (auto _ : state) torch_permutation(seed++, order);
  state.counters["Msamples/s"] = rate(static_cast<double>(state.range(0)) / kMillion);
}
BENCHMARK(shuffle_epoch)->Arg(1000000)->Unit(benchmark::kMillisecond);

void find_capacity(benchmark::State& state) {
  StepPlanOptions options;
  options.num_samples = state.range(0);
  options.batch_size = 8;
  options.num_ranks = 64;
  options.num_epochs = 3;
  options.shuffle = true;
  const auto lengths = random_lengths(options.num_samples);
  const Packs packs(options.num_samples);
  const StepPlan plan(options);
  for (auto _ : state) benchmark::DoNotOptimize(capacity_of(lengths, packs, plan, 16));
  state.counters["Msamples/s"] = rate(3 * static_cast<double>(state.range(0)) / kMillion);
}
BENCHMARK(find_capacity)->Arg(1000000)->Unit(benchmark::kMillisecond);

void pack_samples(benchmark::State& state) {
  const auto lengths = random_lengths(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Packs::best_fit(lengths, 4096));
  state.counters["Msamples/s"] = rate(static_cast<double>(state.range(0)) / kMillion);
}
BENCHMARK(pack_samples)->Arg(1000000)->Arg(10000000)->Unit(benchmark::kMillisecond);

void build_descriptor(benchmark::State& state) {
  std::mt19937 random(6);
  std::vector<std::vector<int32_t>> rows(16, std::vector<int32_t>(1024));
  for (auto& row : rows) {
    for (int32_t& id : row) id = static_cast<int32_t>(random() % 152064);
  }
  const Dataset data(rows, {});
  const BatchSource source(data, StepPlan(evaluation_plan(16, 16, 1)), 0, 16);
  const ops::BatchLayout layout{source.capacity()};
  BatchBuilder builder(layout.capacity);
  std::vector<int32_t> out(static_cast<size_t>(layout.total()));
  std::vector<int32_t> samples(16);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int32_t>(i);
  for (auto _ : state) builder.build(data, samples, layout, 16, out.data());
  state.counters["Mtokens/s"] = rate(16 * 1024 / kMillion);
}
BENCHMARK(build_descriptor)->Unit(benchmark::kMicrosecond);

void read_rows_of_ids(benchmark::State& state) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("trireme-bench-data-" + std::to_string(::getpid()) + ".jsonl");
  {
    std::mt19937 random(7);
    std::ofstream file(path);
    for (int row = 0; row < 4000; ++row) {
      file << "{\"input_ids\": [1";
      for (int i = 0; i < 400; ++i) file << ", " << random() % 152064;
      file << "]}\n";
    }
  }
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  DatasetOptions options;
  options.vocab_size = 152064;
  options.max_seq_length = 4096;
  options.num_threads = static_cast<int>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Dataset::load(path, options));
  state.counters["MB/s"] = rate(bytes / kMillion);
  std::filesystem::remove(path);
}
BENCHMARK(read_rows_of_ids)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trireme::data

BENCHMARK_MAIN();
