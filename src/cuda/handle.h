// Errors and owned handles of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <string_view>
#include <utility>

namespace trireme::cuda {

/// DeviceError "CALL: library's text (its name), at src/cuda/FILE:LINE".
[[noreturn]] void throw_cuda(cudaError_t error, std::string_view call, std::source_location where);

inline void require(cudaError_t error, std::string_view call,
                    std::source_location where = std::source_location::current()) {
  if (error != cudaSuccess) [[unlikely]]
    throw_cuda(error, call, where);
}

/// Runs a call of the runtime and throws DeviceError with its text when it fails.
#define TRIREME_CUDA(call) ::trireme::cuda::require((call), #call)

/// "src/cuda/FILE:LINE".
std::string to_string(std::source_location where);

/// A stream that does not wait for the default stream.
class StreamHandle {
 public:
  explicit StreamHandle(int priority) {
    TRIREME_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  ~StreamHandle() { (void)cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event; `flags` as cudaEventCreateWithFlags.
class EventHandle {
 public:
  explicit EventHandle(unsigned flags = cudaEventDisableTiming) {
    TRIREME_CUDA(cudaEventCreateWithFlags(&event_, flags));
  }
  EventHandle(EventHandle&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;
  ~EventHandle() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace trireme::cuda
