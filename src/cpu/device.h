// The CPU as a device: a thread for each stream, arenas of anonymous memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/stream.h"
#include "device/device.h"

namespace trireme::cpu {

/// Runs one operation on the calling thread; `stream` says which (a stream keeps its thread).
using OpRunner = std::function<void(device::StreamKind stream, const ops::OpCall& call)>;

/// Told of every executed item, on the stream's thread, after it ended. Must not throw.
class ExecutionObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~ExecutionObserver() = default;
  virtual void executed(device::StreamKind stream, int64_t sequence, const StreamItem& item,
                        Time start, Time end) = 0;
};

struct DeviceOptions {
  /// Items a stream holds before a launch waits for room.
  int64_t queue_items = 1024;
  /// Ask for huge pages (arenas of 2 MiB and more).
  bool huge_pages = true;
  /// Debug: every collective starts this much later.
  std::chrono::milliseconds delay_collectives{0};
  /// May be null; must outlive the device.
  ExecutionObserver* observer = nullptr;
};

class Device final : public device::Device, private ItemRunner {
 public:
  /// `communicator` must outlive the device. Nothing is allocated after construction but by
  /// allocate(), create_events() and errors.
  Device(OpRunner ops, comm::Communicator& communicator, const DeviceOptions& options = {});
  /// Work still in flight is dropped and the communicator aborted: drain first.
  ~Device() override;

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
  int stamp(device::StreamKind stream) override;
  double stamped(int number) const override;
  void forget_stamps() override;

  /// Where a stream is. Any thread.
  Progress progress(device::StreamKind stream) const;

 private:
  struct Arena {
    void* base = nullptr;
    size_t bytes = 0;
  };

  Stream& at(device::StreamKind stream) const { return *streams_[static_cast<size_t>(stream)]; }
  Ticket& ticket(int event);
  void run(device::StreamKind stream, int64_t sequence, const StreamItem& item) override;
  void execute(device::StreamKind stream, const StreamItem& item);
  void fail(std::exception_ptr error, const std::string& words);
  void throw_if_failed() const;

  const OpRunner ops_;
  comm::Communicator& communicator_;
  const DeviceOptions options_;
  std::array<int64_t, device::kNumSpaces> allocated_{};
  std::vector<Arena> arenas_;
  std::vector<Ticket> events_;
  std::deque<double> stamps_;  // written on the streams' threads

  std::atomic<bool> failed_{false};
  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
  std::array<std::unique_ptr<Stream>, device::kNumStreams> streams_;
};

}  // namespace trireme::cpu
