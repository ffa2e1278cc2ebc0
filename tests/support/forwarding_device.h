// A device in front of another that passes everything on: tests override what they watch or change.
#pragma once

#include "device/device.h"

namespace trireme::testing {

class ForwardingDevice : public device::Device {
 public:
  explicit ForwardingDevice(device::Device& device) : device_(device) {}
  // A copy would stand beside the other device, not in front of it.
  ForwardingDevice(const ForwardingDevice&) = delete;
  ForwardingDevice& operator=(const ForwardingDevice&) = delete;

  std::byte* allocate(device::Space space, int64_t bytes) override {
    return device_.allocate(space, bytes);
  }
  int64_t allocated(device::Space space) const override { return device_.allocated(space); }
  void launch(device::StreamKind stream, const ops::OpCall& call) override {
    device_.launch(stream, call);
  }
  void launch(device::StreamKind stream, const comm::CommCall& call) override {
    device_.launch(stream, call);
  }
  void copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) override {
    device_.copy(stream, to, from, bytes);
  }
  void fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) override {
    device_.fill(stream, to, byte, bytes);
  }
  void call(device::StreamKind stream, const device::HostCall& call) override {
    device_.call(stream, call);
  }
  void create_events(int count) override { device_.create_events(count); }
  void record(device::StreamKind stream, int event) override { device_.record(stream, event); }
  void wait(device::StreamKind stream, int event) override { device_.wait(stream, event); }
  void synchronize(int event) override { device_.synchronize(event); }
  void drain() override { device_.drain(); }

 protected:
  device::Device& device_;
};

}  // namespace trireme::testing
