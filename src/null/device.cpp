#include "null/device.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace trireme::null {

std::byte* Device::allocate(device::Space space, int64_t bytes) {
  check(bytes >= 0, "an arena of {} bytes", bytes);
  allocated_[static_cast<size_t>(space)] += bytes;
  const int64_t address = next_address_;
  next_address_ += round_up(std::max<int64_t>(bytes, 1), 4096);
  return reinterpret_cast<std::byte*>(address);
}

int64_t Device::allocated(device::Space space) const {
  return allocated_[static_cast<size_t>(space)];
}

void Device::launch(device::StreamKind stream, const ops::OpCall& call) {
  launches_.push_back({stream, call});
}

void Device::launch(device::StreamKind stream, const comm::CommCall& call) {
  launches_.push_back({stream, comm::QueuedCall(call)});
}

void Device::copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) {
  launches_.push_back({stream, Copy{to, from, bytes}});
}

void Device::fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) {
  launches_.push_back({stream, Fill{to, byte, bytes}});
}

void Device::call(device::StreamKind stream, const device::HostCall& call) {
  launches_.push_back({stream, call});
}

void Device::create_events(int count) {
  check(num_events_ == 0, "events are created once");
  num_events_ = count;
}

void Device::check_event(int event) const {
  check(event >= 0 && event < num_events_, "event {} of {}", event, num_events_);
}

void Device::record(device::StreamKind stream, int event) {
  check_event(event);
  launches_.push_back({stream, Record{event}});
}

void Device::wait(device::StreamKind stream, int event) {
  check_event(event);
  launches_.push_back({stream, Wait{event}});
}

void Device::synchronize(int event) { check_event(event); }

void Device::drain() {}

}  // namespace trireme::null
