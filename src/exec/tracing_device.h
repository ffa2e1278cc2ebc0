// When the work of a program really ran: a device in front of another that notes times on its
// streams, by the names of the program.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "exec/executor.h"
#include "model/graph.h"

namespace trireme::exec {

/// One piece of work of a stream: an entry of a program, or (`inner`) an operation or collective
/// inside the entry before it.
struct TraceSpan {
  device::StreamKind stream{};
  double start = 0;  // seconds, on one clock for all streams of the rank
  double end = 0;
  std::string name;  // "forward block.3", "linear"
  std::string program;
  int64_t run = 0;
  int32_t micro_batch = -1;
  int64_t amount = 0;  // operation: rows of its first operand; collective: bytes
  int64_t cols = 0;    // operation: columns of its first operand
  double flops = 0;    // operation: of products, and of attention where sequences are equally long
  double bytes = 0;    // operation: read and written once each
  bool inner = false;
};

/// Passes everything on; between start() and finish() each launch is timed, which costs some
/// microseconds each and allocates. All calls come from the device's host thread.
class TracingDevice final : public device::Device, public EntryObserver {
 public:
  /// Both must outlive it. Name it as the executor's device and as its observer.
  TracingDevice(device::Device& device, const model::ModelGraph& model);

  void start();
  /// Waits for the device and ends the trace. Spans of a stream in the order of launch.
  std::vector<TraceSpan> finish();

  void begin(const plan::Program& program, const plan::Entry& entry, int64_t run) override;
  void end(const plan::Entry& entry) override;

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

 private:
  /// A span whose times are still numbers of stamps.
  struct Pending {
    TraceSpan span;
    int start = -1;
    int end = -1;
  };

  void begin_call(device::StreamKind stream);
  TraceSpan* note(device::StreamKind stream, std::string_view name, int64_t amount);
  int& last(device::StreamKind stream) { return last_[static_cast<size_t>(stream)]; }

  device::Device& device_;
  const model::ModelGraph& model_;
  bool on_ = false;
  bool inside_ = false;  // an entry
  std::vector<Pending> pending_;
  size_t entry_ = 0;  // in pending_
  std::array<int, device::kNumStreams> last_{};  // the entry's latest stamp of each stream, or -1
};

/// The spans as a file that Perfetto and chrome://tracing open: one process a rank, one track a
/// stream, times in microseconds from the first span.
std::string chrome_trace(std::span<const TraceSpan> spans, int rank);

}  // namespace trireme::exec
