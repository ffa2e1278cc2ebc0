// Arenas: one allocation each, of device memory or of pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace trireme::cuda {

/// Never managed memory.
class Arena {
 public:
  /// 4096-byte aligned and zeroed. ConfigError with planned and free bytes, and what to change,
  /// when the device's memory does not hold it.
  Arena(device::Space space, int64_t bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;
  ~Arena();

  device::Space space() const { return space_; }
  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }
  bool contains(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= base_ && at < base_ + bytes_;
  }
  /// Gives the memory up without freeing it: a device that may still write to it.
  void leak() { allocation_ = nullptr; }

 private:
  device::Space space_;
  int64_t bytes_;
  std::byte* allocation_ = nullptr;
  std::byte* base_ = nullptr;
};

/// Total and free bytes of the current device.
struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;
};
DeviceMemory device_memory();

}  // namespace trireme::cuda
