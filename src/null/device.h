// A device that does nothing and records everything: for plans of worlds that do not exist, and for
// tests of what the executor launches.
#pragma once

#include <array>
#include <variant>
#include <vector>

#include "device/device.h"

namespace trireme::null {

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};
struct Fill {
  void* to = nullptr;
  uint8_t byte = 0;
  int64_t bytes = 0;
};
struct Record {
  int event = 0;
};
struct Wait {
  int event = 0;
};

/// One launch, in host order.
struct Launch {
  device::StreamKind stream{};
  std::variant<ops::OpCall, comm::QueuedCall, Copy, Fill, device::HostCall, Record, Wait> what;
};

class Device final : public device::Device {
 public:
  /// Distinct, aligned addresses that must not be touched.
  std::byte* allocate(device::Space space, int64_t bytes) override;
  int64_t allocated(device::Space space) const override;

  void launch(device::StreamKind stream, const ops::OpCall& call) override;
  void launch(device::StreamKind stream, const comm::CommCall& call) override;
  void copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) override;
  void fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) override;
  void call(device::StreamKind stream, const device::HostCall& call) override;

  void create_events(int count) override;
  void record(device::StreamKind stream, int event) override;
  void wait(device::StreamKind stream, int event) override;
  void synchronize(int event) override;
  void drain() override;

  const std::vector<Launch>& launches() const { return launches_; }
  void clear() { launches_.clear(); }

 private:
  void check_event(int event) const;

  std::array<int64_t, device::kNumSpaces> allocated_{};
  int64_t next_address_ = int64_t{1} << 40;
  int num_events_ = 0;
  std::vector<Launch> launches_;
};

/// A backend that runs everything and stages nothing.
class OpSizing final : public ops::OpSizing {
 public:
  int64_t workspace_bytes(const ops::OpCall&) const override { return 0; }
  bool supports(ops::OpKind, DType) const override { return true; }
};

class CommSizing final : public comm::CommSizing {
 public:
  int64_t workspace_bytes(const comm::CommCall&, int64_t) const override { return 0; }
};

}  // namespace trireme::null
