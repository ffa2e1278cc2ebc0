// Naps in place of work, so that a busy machine changes little of what is timed.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "cpu/device.h"
#include "device/device.h"

namespace trireme::testing {

/// The stream sleeps when it comes to this.
inline void nap(device::Device& device, device::StreamKind stream, int64_t milliseconds) {
  const auto sleep = [](void*, int64_t ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  };
  device.call(stream, {sleep, nullptr, milliseconds});
}

/// How long naps and collectives really took, of all ranks together.
class NapWatch final : public cpu::ExecutionObserver {
 public:
  void executed(device::StreamKind stream, int64_t, const cpu::StreamItem& item, Time start,
                Time end) override {
    const auto kind = static_cast<cpu::ItemKind>(item.index());
    const double seconds = std::chrono::duration<double>(end - start).count();
    if (kind == cpu::ItemKind::comm) communication += seconds;
    if (kind == cpu::ItemKind::comm) ++collectives;
    if (kind == cpu::ItemKind::host && stream == device::StreamKind::compute) {
      computation += seconds;
    }
  }
  std::atomic<double> communication{0};
  std::atomic<double> computation{0};
  std::atomic<int> collectives{0};
};

}  // namespace trireme::testing
