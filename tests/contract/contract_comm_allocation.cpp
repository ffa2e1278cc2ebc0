// Calls after the first take no memory (the communicators are C++ throughout, so that counting
// operator new sees everything).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "contract/comm_world.h"
#include "cpu/communicator_calls.h"
#include "cpu/device.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  ++num_allocations;
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Not inlined: the compiler would see free() of what it takes for another allocator's memory.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace trireme::test {
namespace {

using comm::CommCall;
using comm::CommKind;
using comm::CommPiece;

constexpr int kRanks = 3;
constexpr int64_t kCount = 200'000;

/// One step: every kind of call, launched on the device's streams with waits between.
class Step {
 public:
  explicit Step(comm::Communicator& communicator)
      : device_([](device::StreamKind, const ops::OpCall&) {}, communicator) {
    const int64_t bytes = kRanks * kCount * 4;
    auto* const share = device_.allocate(device::Space::device, kCount * 4);
    auto* const whole = device_.allocate(device::Space::device, bytes);
    workspace_ = device_.allocate(device::Space::device, kWorkspace);
    gather_ = {share, whole, kCount};
    scatter_ = {whole, share, kCount};
    reduce_ = {whole, whole, kRanks * kCount};
    device_.create_events(2);
  }

  void run() {
    for (int round = 0; round < 20; ++round) {
      launch(device::StreamKind::comm_dp, CommKind::all_gather, gather_);
      device_.record(device::StreamKind::comm_dp, 0);
      device_.wait(device::StreamKind::compute, 0);
      device_.launch(device::StreamKind::compute, ops::OpCall{});
      device_.record(device::StreamKind::compute, 1);
      device_.wait(device::StreamKind::comm_dp, 1);
      launch(device::StreamKind::comm_dp, CommKind::reduce_scatter, scatter_);
      launch(device::StreamKind::comm_dp, CommKind::all_reduce, reduce_);
      launch(device::StreamKind::comm_dp, CommKind::reduce_scatter, scatter_, DType::bf16);
      launch(device::StreamKind::comm_dp, CommKind::all_reduce, reduce_, DType::bf16);
      launch(device::StreamKind::comm_dp, CommKind::broadcast, gather_);
    }
    device_.drain();
  }

 private:
  static constexpr int64_t kWorkspace = (kRanks - 1) * cpu::kStagedElements * 4;

  void launch(device::StreamKind stream, CommKind kind, const CommPiece& piece,
              std::optional<DType> wire = {}) {
    device_.launch(stream, CommCall{.kind = kind,
                                    .wire = wire,
                                    .pieces = std::span(&piece, 1),
                                    .workspace = workspace_,
                                    .workspace_bytes = kWorkspace});
  }

  cpu::Device device_;
  std::byte* workspace_ = nullptr;
  CommPiece gather_, scatter_, reduce_;
};

void expect_no_allocation(Backend backend) {
  std::atomic<int> at_gate{0};
  const auto gate = [&](int passes) {
    ++at_gate;
    while (at_gate < passes * kRanks) std::this_thread::yield();
  };
  int64_t before = 0, after = 0;
  const Failures failures = run_world(backend, kRanks, [&](comm::Communicator& communicator) {
    Step step(communicator);
    step.run();
    gate(1);
    if (communicator.rank() == 0) before = num_allocations;
    gate(2);
    for (int i = 0; i < 3; ++i) step.run();
    gate(3);
    if (communicator.rank() == 0) after = num_allocations;
    gate(4);
  });
  for (const std::string& words : failures) EXPECT_EQ(words, "");
  EXPECT_EQ(after - before, 0);
}

TEST(CommAllocation, StepsOfThreadsTakeNoMemory) { expect_no_allocation(Backend::threads); }
TEST(CommAllocation, StepsOfProcessesTakeNoMemory) { expect_no_allocation(Backend::sockets); }

}  // namespace
}  // namespace trireme::test
