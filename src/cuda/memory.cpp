#include "cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "cuda/handle.h"

namespace trireme::cuda {

namespace {

constexpr int64_t kPage = 4096;

[[noreturn]] void does_not_fit(int64_t planned, const DeviceMemory& memory) {
  throw ConfigError(fmt::format(
      "device memory: the plan needs {} ({} bytes) and {} of {} are free; choose a "
      "smaller --per_device_train_batch_size or --max_seq_length, a higher --recompute "
      "level, a higher --zero_stage, or more ranks (trireme plan shows each)",
      human_bytes(planned), planned, human_bytes(memory.free), human_bytes(memory.total)));
}

std::byte* allocate_device(int64_t bytes) {
  const DeviceMemory memory = device_memory();
  if (bytes > memory.free) does_not_fit(bytes, memory);
  void* address = nullptr;
  const cudaError_t error = cudaMalloc(&address, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: nothing was launched
    does_not_fit(bytes, memory);
  }
  require(error, "cudaMalloc");
  return static_cast<std::byte*>(address);
}

std::byte* allocate_pinned(int64_t bytes) {
  void* address = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&address, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw ConfigError(fmt::format(
        "host memory: {} of pinned memory ({} bytes) cannot be had; raise the locked-memory limit "
        "(ulimit -l) or run fewer ranks on this machine",
        human_bytes(bytes), bytes));
  }
  require(error, "cudaHostAlloc");
  return static_cast<std::byte*>(address);
}

}  // namespace

DeviceMemory device_memory() {
  size_t free = 0;
  size_t total = 0;
  TRIREME_CUDA(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

Arena::Arena(device::Space space, int64_t bytes) : space_(space), bytes_(bytes) {
  check(bytes >= 0, "an arena of {} bytes", bytes);
  // An empty arena still has an address: a null operand means an absent one. The runtime promises
  // 256-byte alignment only, hence a page to spare.
  const int64_t size = std::max(bytes, kPage) + kPage;
  const bool on_device = space == device::Space::device;
  allocation_ = on_device ? allocate_device(size) : allocate_pinned(size);
  const auto address = reinterpret_cast<uintptr_t>(allocation_);
  base_ = allocation_ +
          (round_up(static_cast<int64_t>(address), kPage) - static_cast<int64_t>(address));
  if (on_device) {
    TRIREME_CUDA(cudaMemset(allocation_, 0, static_cast<size_t>(size)));
    // The runtime's own stream is not ordered with ours.
    TRIREME_CUDA(cudaDeviceSynchronize());
  } else {
    std::memset(allocation_, 0, static_cast<size_t>(size));
  }
}

Arena::Arena(Arena&& other) noexcept
    : space_(other.space_),
      bytes_(other.bytes_),
      allocation_(std::exchange(other.allocation_, nullptr)),
      base_(other.base_) {}

Arena::~Arena() {
  if (allocation_ == nullptr) return;
  if (space_ == device::Space::device) {
    (void)cudaFree(allocation_);
  } else {
    (void)cudaFreeHost(allocation_);
  }
}

}  // namespace trireme::cuda
