// One GPU as a device: a CUDA stream for each stream, arenas of plain device and pinned memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/host_calls.h"
#include "cuda/memory.h"
#include "cuda/nccl_communicator.h"
#include "cuda/stream.h"
#include "device/device.h"

namespace trireme::cuda {

/// Launches one operation on a stream, from the device's host thread.
using OpLauncher = std::function<void(const ops::OpCall& call, cudaStream_t stream)>;

struct DeviceOptions {
  int rank = 0;    // for messages
  int device = 0;  // of CUDA; current on the constructing thread
  /// A collective that the GPU started and that does not end for so long fails, and names itself.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Debug: every collective starts this much later.
  std::chrono::nanoseconds delay_collectives{0};
};

/// What the contract (device/device.h) leaves open:
///   * Launched work that is dropped after an error: later launches do nothing, host calls are not
///     made, and what the GPU already holds runs out (collectives are aborted).
///   * Host calls run on a thread of the driver, one at a time for the whole device. An error is
///     thrown when the one that has begun is over, or after two minutes.
///   * A thread of the device's own looks every 100 ms for errors of NCCL, for a rank that
///     published why the world ends, for peers that fell silent and for collectives that do not
///     end. It frees waiting calls: launches that wait for room, synchronize() and drain().
class Device final : public device::Device, private HostCallRunner {
 public:
  /// `communicator` must outlive the device. All calls come from the constructing thread.
  Device(OpLauncher ops, NcclCommunicator& communicator, const DeviceOptions& options);
  /// Work still in flight is an error that the other ranks are told: drain first. Ends the
  /// communicator, then frees the arenas. Where the GPU does not stop within 10 s, nothing is
  /// freed.
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

  /// Where every stream is, a line each. Any thread.
  std::string report() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// A collective that the GPU is inside, as the watching thread sees it.
  struct Stall {
    uint32_t started = 0;
    uint32_t done = 0;
    Clock::time_point since{};
  };

  Stream& at(device::StreamKind stream) const { return *streams_[static_cast<size_t>(stream)]; }
  cudaEvent_t event_at(int event) const;
  template <typename Body>
  void launched(const Body& body);
  void wait_for(cudaEvent_t event);
  void run_host_call(const device::HostCall& call) noexcept override;

  // device_watch.cpp
  void fail(std::exception_ptr error, const std::string& words);
  void fail_now(const std::string& words);
  void throw_if_failed();
  std::string signed_by_rank(std::string_view words) const;
  void start_watching();
  void stop_watching();
  void watch();
  void abort_after_failure(std::unique_lock<std::mutex>& lock);
  void look();
  void look_at_stalls(Clock::time_point now, bool ask_peers);
  std::string describe_stall(const Stream& stream, const CommProgress& progress) const;

  const OpLauncher ops_;
  NcclCommunicator& communicator_;
  const DeviceOptions options_;
  const Marker marker_;
  Arena marks_;
  std::array<std::unique_ptr<Stream>, device::kNumStreams> streams_;
  std::vector<int64_t> comm_numbers_;  // by group
  std::vector<Arena> arenas_;
  std::array<int64_t, device::kNumSpaces> allocated_{};
  std::vector<EventHandle> events_;
  std::vector<int> recorded_on_;     // by event: stream, or -1
  std::vector<EventHandle> stamps_;  // kept for reuse
  size_t num_stamps_ = 0;
  std::vector<EventHandle> drain_events_;  // by stream

  HostCalls host_calls_;  // closed with the first error

  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::string words_;
  bool aborted_ = false;
  bool stopping_ = false;

  // Of the watching thread.
  std::array<Stall, device::kNumStreams> stalls_{};
  Clock::time_point next_beat_{};
  Clock::time_point next_question_{};
  std::thread watcher_;
};

}  // namespace trireme::cuda
