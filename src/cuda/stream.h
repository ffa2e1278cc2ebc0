// One ordered queue of work of a GPU, and what is known of where it is.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/handle.h"
#include "device/device.h"

namespace trireme::cuda {

/// Writes a number to pinned memory when a stream gets there, without occupying a multiprocessor.
class Marker {
 public:
  /// A driver that cannot is an error.
  Marker();
  void write(cudaStream_t stream, uint32_t* pinned, uint32_t value) const;

 private:
  CUresult (*write_)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
};

/// Runs host functions. On a thread of the driver, which may not call CUDA.
class HostCallRunner {
 public:
  virtual ~HostCallRunner() = default;
  virtual void run_host_call(const device::HostCall& call) noexcept = 0;
};

/// What a report says of a collective.
struct CommNote {
  comm::CommKind kind{};
  int32_t group = 0;
  int64_t number = 0;  // of the group's calls on this stream, from 0
  int64_t pieces = 0;
  int64_t bytes = 0;
};

/// Collectives of a stream, counted: all launched, those that the GPU reached, and those it ended.
struct CommProgress {
  int64_t launched = 0;
  uint32_t started = 0;
  uint32_t done = 0;
  bool waits() const { return started != done; }
};

/// Launches belong to one host thread; progress(), note() and last_op() to any.
class Stream {
 public:
  /// `marks`: two words of pinned memory, 0.
  Stream(device::StreamKind kind, int priority, const Marker& marker, uint32_t* marks,
         HostCallRunner& runner);

  cudaStream_t get() const { return stream_.get(); }
  device::StreamKind kind() const { return kind_; }
  /// cudaSuccess, cudaErrorNotReady or what went wrong; leaves no error behind.
  cudaError_t query() const;

  /// False while all host calls that fit are in flight.
  bool has_room() const;
  /// Needs room.
  void launch(const device::HostCall& call);

  /// Around the launch of a collective.
  void begin(const CommNote& note);
  void end();
  CommProgress progress() const;
  /// Of the collective with this number on the stream, from 1; valid for the latest kNotes.
  CommNote note(uint32_t number) const;

  /// Host calls still in flight will do nothing, and may outlive the runner, not the stream.
  void abandon() { runner_.store(nullptr); }

  void set_last_op(ops::OpKind kind) { last_op_.store(static_cast<int>(kind)); }
  /// Name of the operation launched last, or "".
  std::string_view last_op() const;

 private:
  static constexpr size_t kHostCalls = 1024;
  static constexpr size_t kNotes = 1024;
  struct HostSlot {
    Stream* stream = nullptr;
    device::HostCall call;
  };
  static void CUDART_CB run_slot(void* slot);

  const device::StreamKind kind_;
  StreamHandle stream_;
  const Marker& marker_;
  uint32_t* const marks_;  // started, done
  std::atomic<HostCallRunner*> runner_;

  std::vector<HostSlot> host_calls_;
  int64_t host_launched_ = 0;
  std::atomic<int64_t> host_done_{0};

  mutable std::mutex notes_mutex_;
  std::vector<CommNote> notes_;
  int64_t comms_launched_ = 0;
  std::atomic<int> last_op_{-1};
};

}  // namespace trireme::cuda
