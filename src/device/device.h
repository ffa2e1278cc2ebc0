// One accelerator (or the CPU) as the executor sees it: arenas, ordered streams, events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/comm.h"
#include "ops/op.h"

namespace trireme::device {

/// One queue of work each. Work of one stream runs in order; streams run concurrently.
enum class StreamKind : uint8_t {
  compute,
  copy_in,
  copy_out,
  comm_dp,  // gathers and reductions over data ranks
  comm_tp,
  send_next,  // pipeline: activations to the next stage,
  recv_prev,  // from the stage before,
  send_prev,  // gradients back to it,
  recv_next,  // and from the next
  comm_control,
};
inline constexpr int kNumStreams = 10;
std::string_view name_of(StreamKind stream);

enum class Space : uint8_t { device, pinned };
inline constexpr int kNumSpaces = 2;
std::string_view name_of(Space space);

/// A host function that runs in stream order. Plain data, no allocation. Must not call Device.
struct HostCall {
  void (*function)(void* context, int64_t argument) = nullptr;
  void* context = nullptr;
  int64_t argument = 0;
};

/// One rank's device. All launches are asynchronous and return at once unless the queue is full
/// (then they wait for room); they are made by one host thread. Errors of launched work are kept
/// and thrown by the next call that waits (synchronize, drain), when host calls that have begun are
/// over: who catches them may let go of what those use. After an error the remaining work is
/// dropped, and abort() of the communicator has been called.
class Device {
 public:
  virtual ~Device() = default;

  /// One allocation, 4096-byte aligned, zeroed, freed with the device. `bytes` may be 0.
  virtual std::byte* allocate(Space space, int64_t bytes) = 0;
  /// Bytes allocated so far.
  virtual int64_t allocated(Space space) const = 0;

  virtual void launch(StreamKind stream, const ops::OpCall& call) = 0;
  /// The pieces of the call stay until it is done, but a single piece is copied.
  virtual void launch(StreamKind stream, const comm::CommCall& call) = 0;
  virtual void copy(StreamKind stream, void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(StreamKind stream, void* to, uint8_t byte, int64_t bytes) = 0;
  virtual void call(StreamKind stream, const HostCall& call) = 0;

  /// Makes `count` events, numbered from 0; once, before the first record.
  virtual void create_events(int count) = 0;
  /// The event fires when all work launched on `stream` so far is done.
  virtual void record(StreamKind stream, int event) = 0;
  /// Later work of `stream` waits for the latest record() of `event` made before this call
  /// (never recorded: no wait).
  virtual void wait(StreamKind stream, int event) = 0;
  /// Blocks the host until the latest record() of `event` fired.
  virtual void synchronize(int event) = 0;
  /// Blocks the host until every stream is idle.
  virtual void drain() = 0;

  // For traces: these allocate, and cost the stream some microseconds.
  /// Notes the time when `stream` gets here. Notes are numbered from 0; -1: there is no clock.
  virtual int stamp(StreamKind stream) {
    (void)stream;
    return -1;
  }
  /// Seconds of a note, on one clock for all streams, once the stream has passed it (drain).
  virtual double stamped(int number) const {
    (void)number;
    return 0;
  }
  /// Forgets all notes; the next one is 0 again. While every stream is idle.
  virtual void forget_stamps() {}
};

}  // namespace trireme::device
