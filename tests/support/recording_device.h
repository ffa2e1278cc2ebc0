// Writes down what the host asks of a device.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_device.h"

namespace trireme::testing {

class RecordingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  /// The calls since the last take(), without addresses, which differ from run to run.
  std::vector<std::string> take() { return std::exchange(calls_, {}); }

  void launch(device::StreamKind stream, const ops::OpCall& call) override {
    note(stream, fmt::format("{} {} x {} {}", ops::name_of(call.kind), call.args[0].rows,
                             call.args[0].cols, call.law == ops::Law::set ? "set" : "add"));
    device_.launch(stream, call);
  }
  void launch(device::StreamKind stream, const comm::CommCall& call) override {
    note(stream, fmt::format("{} {} pieces", comm::name_of(call.kind), call.pieces.size()));
    device_.launch(stream, call);
  }
  void copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) override {
    note(stream, fmt::format("copy {}", bytes));
    device_.copy(stream, to, from, bytes);
  }
  void fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) override {
    note(stream, fmt::format("fill {}", bytes));
    device_.fill(stream, to, byte, bytes);
  }
  void call(device::StreamKind stream, const device::HostCall& call) override {
    note(stream, fmt::format("call {}", call.argument));
    device_.call(stream, call);
  }
  void record(device::StreamKind stream, int event) override {
    note(stream, fmt::format("record {}", event));
    device_.record(stream, event);
  }
  void wait(device::StreamKind stream, int event) override {
    note(stream, "wait");
    device_.wait(stream, event);
  }
  void synchronize(int event) override {
    calls_.push_back(fmt::format("host waits for {}", event));
    device_.synchronize(event);
  }
  void drain() override {
    calls_.push_back("host waits for everything");
    device_.drain();
  }

 private:
  void note(device::StreamKind stream, const std::string& what) {
    calls_.push_back(fmt::format("{}: {}", name_of(stream), what));
  }
  std::vector<std::string> calls_;
};

}  // namespace trireme::testing
