#include <hwy/targets.h>

#include <cstdlib>
#include <cstring>

#include "base/math.h"
#include "contract/backend.h"
#include "cpu/op_table.h"
#include "support/backends.h"

namespace trireme::contract {

namespace {

class CpuBackend : public Backend {
 public:
  /// `without` are Highway targets that vector kernels must not use.
  CpuBackend(int num_threads, bool bf16_products, int64_t without)
      : context_(num_threads, bf16_products),
        sizing_(num_threads, bf16_products),
        without_(without) {}

  void* allocate(int64_t bytes) override {
    memory_.emplace_back(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes + 1, 64))));
    return memory_.back().get();
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void download(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void run(ops::OpCall call) override {
    call.workspace_bytes = sizing_.workspace_bytes(call);
    call.workspace = allocate(call.workspace_bytes + 64);
    auto* bytes = static_cast<std::byte*>(call.workspace);
    std::memset(bytes, 0xff, static_cast<size_t>(call.workspace_bytes + 64));
    hwy::DisableTargets(without_);
    cpu::run(call, context_);
    hwy::DisableTargets(0);
    for (int64_t i = 0; i < 64; ++i) {
      check(bytes[call.workspace_bytes + i] == std::byte{0xff}, "{} wrote beyond its workspace",
            ops::name_of(call.kind));
    }
    memory_.pop_back();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  cpu::OpContext context_;
  cpu::OpSizing sizing_;
  int64_t without_;
  std::vector<std::unique_ptr<void, Free>> memory_;
};

BackendRow row(std::string name, DType dtype, bool bf16_products, int64_t without = 0) {
  return {std::move(name), dtype, [=](int num_threads) {
            return std::make_unique<CpuBackend>(num_threads, bf16_products, without);
          }};
}

}  // namespace

std::vector<BackendRow> backend_rows() {
  if (testing::on_cuda()) return cuda_rows();
  constexpr int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;
  std::vector<BackendRow> rows = {row("cpu_f32", DType::f32, false)};
  if (cpu::has_bf16_products()) rows.push_back(row("cpu_bf16", DType::bf16, true));
  // What processors without bf16 products run, and those with narrower vectors.
  rows.push_back(row("cpu_bf16_widened", DType::bf16, false));
  rows.push_back(row("cpu_f32_avx2", DType::f32, false, kAvx512));
  rows.push_back(row("cpu_bf16_widened_avx2", DType::bf16, false, kAvx512));
  rows.push_back(row("cpu_f32_sse", DType::f32, false, kAvx512 | HWY_AVX2));
  return rows;
}

}  // namespace trireme::contract
