// Steps take no memory: every allocation of the process is counted, whoever makes it. The one
// exception is known by name: oneDNN builds a small map of arguments whenever it runs a product.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "support/backends.h"
#include "support/program.h"
#include "support/rig.h"
#include "support/run_world.h"
#include "train/state_sources.h"

namespace {

struct Counts {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> largest{0};
};
Counts ours;
Counts in_products;
std::atomic<int64_t> products{0};
std::atomic<int64_t> mappings{0};
std::atomic<int64_t> made_before{0}, made_in_steps{0};  // primitives
std::atomic<bool> counting{false};
thread_local bool in_product = false;

void count(size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Counts& counts = in_product ? in_products : ours;
  const auto size = static_cast<int64_t>(bytes);
  ++counts.calls;
  counts.bytes += size;
  if (size > counts.largest) counts.largest = size;
}

}  // namespace

// The C library's allocator under its own names; operator new comes through malloc.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t items, size_t bytes) {
  count(items * bytes);
  return __libc_calloc(items, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  count(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  count(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  static auto* const next = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
  if (counting) ++mappings;
  return next(address, bytes, protection, flags, file, offset);
}

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                     int nargs, const dnnl_exec_arg_t* args) {
  static auto* const next = reinterpret_cast<decltype(&dnnl_primitive_execute)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  if (counting) ++products;
  in_product = true;
  const dnnl_status_t status = next(primitive, stream, nargs, args);
  in_product = false;
  return status;
}

dnnl_status_t dnnl_primitive_create(dnnl_primitive_t* primitive,
                                    const_dnnl_primitive_desc_t description) {
  static auto* const next =
      reinterpret_cast<decltype(&dnnl_primitive_create)>(dlsym(RTLD_NEXT, "dnnl_primitive_create"));
  char thread[16] = {};
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  ++(std::strcmp(thread, "compute") == 0 ? made_in_steps : made_before);
  return next(primitive, description);
}
}

namespace trireme::testing {
namespace {

/// Pages mapped by the process; read without a single allocation.
int64_t mapped_pages() {
  char text[64] = {};
  const int file = ::open("/proc/self/statm", O_RDONLY);
  const auto got = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  return got > 0 ? std::strtoll(text, nullptr, 10) : -1;
}

struct Snapshot {
  int64_t pages = 0;
  int64_t heap_in_use = 0;
};
/// Of the heap the least of many looks: other ranks may stand within a product, which gives back
/// what it took.
Snapshot snapshot() {
  Snapshot seen{mapped_pages(), std::numeric_limits<int64_t>::max()};
  for (int looks = 0; looks < 200; ++looks) {
    seen.heap_in_use = std::min(seen.heap_in_use, static_cast<int64_t>(mallinfo2().uordblks));
    usleep(20);
  }
  return seen;
}

struct Case {
  int ranks;
  int stage;
  bool bf16;
  int threads;
};

class Allocation : public ::testing::TestWithParam<Case> {};

/// Steps 3 to 10 of a run on ragged samples whose sizes come back every step.
TEST_P(Allocation, StepsTakeNoMemory) {
  if (on_cuda()) GTEST_SKIP() << "counts the CPU's";
  const Case& test = GetParam();
  const std::vector<int64_t> period = {9, 31, 4, 17, 22, 6, 40, 12, 3, 28, 15, 8};
  std::vector<int64_t> lengths;
  for (int i = 0; i < 12; ++i) lengths.insert(lengths.end(), period.begin(), period.end());
  const data::Dataset dataset = random_dataset(lengths, 67, 5);
  RigOptions options;
  options.model = tiny_model({.layers = 3, .tied = true});
  options.dataset = &dataset;
  options.ranks = test.ranks;
  options.num_threads = test.threads;
  options.runs_ahead = true;
  options.config.max_steps = 12;
  options.config.train_sampling_strategy = config::Sampling::sequential;
  options.config.gradient_accumulation_steps = 2;
  options.config.per_device_train_batch_size = 6 / test.ranks;
  options.config.zero.stage = test.stage;
  options.config.bf16 = test.bf16;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  Snapshot before;
  Snapshot after;
  options.before_step = [&](train::Session&, int rank, int64_t step) {
    if (rank != 0) return;
    if (step == 3) {
      before = snapshot();
      counting = true;
    }
    if (step == 11) {
      counting = false;
      after = snapshot();
    }
  };
  for (Counts* counts : {&ours, &in_products}) counts->calls = counts->bytes = counts->largest = 0;
  products = mappings = 0;
  train(options);

  EXPECT_EQ(ours.calls, 0) << ours.bytes << " bytes, the largest " << ours.largest;
  EXPECT_EQ(mappings, 0);
  EXPECT_EQ(after.pages, before.pages);
  // A few freed nodes that the allocator keeps for a thread count as in use; eight steps that each
  // kept the smallest one would take more.
  EXPECT_LT(after.heap_in_use - before.heap_in_use, 8 * 32);
  // What remains: the nodes of oneDNN's map of arguments, freed before it returns.
  ASSERT_GT(products, 0);
  std::printf("%ld products: %.1f allocations each, the largest of %ld bytes\n", products.load(),
              static_cast<double>(in_products.calls) / static_cast<double>(products),
              in_products.largest.load());
  EXPECT_LE(in_products.calls, 16 * products);
  EXPECT_LE(in_products.largest, 512);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Allocation,
                         ::testing::Values(Case{1, 0, false, 1}, Case{1, 0, true, 2},
                                           Case{2, 1, true, 1}, Case{3, 3, false, 1},
                                           Case{2, 3, true, 1}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "_stage" +
                                  std::to_string(test.param.stage) +
                                  (test.param.bf16 ? "_bf16" : "") + "_threads" +
                                  std::to_string(test.param.threads);
                         });

/// Most micro-batches of a real run have a size of their own: their products are ready all the
/// same.
TEST(Allocation, ProductsOfAllSizesAreReadyBeforeTheFirstStep) {
  if (on_cuda()) GTEST_SKIP() << "counts the CPU's";
  const test::TempFolder folder;
  test::write_model(folder / "model");
  test::write_rows(folder / "data.jsonl", 60, 4);
  test::write_rows(folder / "eval.jsonl", 9, 5);
  const auto errors = run_in_process(
      {"--model_name_or_path", folder / "model", "--init_from_config", "--data_path",
       folder / "data.jsonl", "--output_dir", folder / "out", "--per_device_train_batch_size", "5",
       "--save_strategy", "no", "--eval_strategy", "epoch", "--eval_path", folder / "eval.jsonl",
       "--num_train_epochs", "2"},
      2);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_GT(made_before, 0);
  EXPECT_EQ(made_in_steps, 0);
}

/// The counters do count.
TEST(Allocation, IsSeen) {
  counting = true;
  const int64_t before = ours.calls;
  auto* const number = new std::atomic<int>(3);
  counting = false;
  EXPECT_EQ(ours.calls, before + 1);
  delete number;
}

}  // namespace
}  // namespace trireme::testing
