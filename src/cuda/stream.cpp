#include "cuda/stream.h"

#include "base/error.h"

namespace trireme::cuda {

Marker::Marker() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TRIREME_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000,
                                                cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw DeviceError("the NVIDIA driver has no cuStreamWriteValue32");
  }
  write_ = reinterpret_cast<decltype(write_)>(function);
}

void Marker::write(cudaStream_t stream, uint32_t* pinned, uint32_t value) const {
  // Pinned memory has one address for host and device.
  const CUresult result =
      write_(stream, reinterpret_cast<CUdeviceptr>(pinned), value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) {
    throw DeviceError(
        fmt::format("cuStreamWriteValue32: error {} of the driver", static_cast<int>(result)));
  }
}

Stream::Stream(device::StreamKind kind, int priority, const Marker& marker, uint32_t* marks,
               HostCallRunner& runner)
    : kind_(kind),
      stream_(priority),
      marker_(marker),
      marks_(marks),
      runner_(&runner),
      host_calls_(kHostCalls),
      notes_(kNotes) {}

cudaError_t Stream::query() const {
  const cudaError_t state = cudaStreamQuery(stream_.get());
  if (state == cudaErrorNotReady) (void)cudaGetLastError();
  return state;
}

bool Stream::has_room() const {
  return host_launched_ - host_done_.load(std::memory_order_acquire) <
         static_cast<int64_t>(kHostCalls);
}

void Stream::launch(const device::HostCall& call) {
  HostSlot& slot = host_calls_[static_cast<size_t>(host_launched_) % kHostCalls];
  slot = {this, call};
  TRIREME_CUDA(cudaLaunchHostFunc(stream_.get(), &Stream::run_slot, &slot));
  ++host_launched_;
}

void CUDART_CB Stream::run_slot(void* slot) {
  const auto& s = *static_cast<const HostSlot*>(slot);
  Stream& stream = *s.stream;
  if (HostCallRunner* runner = stream.runner_.load()) runner->run_host_call(s.call);
  stream.host_done_.fetch_add(1, std::memory_order_acq_rel);
}

void Stream::begin(const CommNote& note) {
  {
    const std::lock_guard lock(notes_mutex_);
    ++comms_launched_;
    notes_[static_cast<size_t>(comms_launched_) % kNotes] = note;
  }
  marker_.write(stream_.get(), &marks_[0], static_cast<uint32_t>(comms_launched_));
}

void Stream::end() {
  marker_.write(stream_.get(), &marks_[1], static_cast<uint32_t>(comms_launched_));
}

CommProgress Stream::progress() const {
  CommProgress progress;
  // Done first: read the other way round, a collective that starts and ends in between would seem
  // to have ended before it started.
  progress.done = __atomic_load_n(&marks_[1], __ATOMIC_ACQUIRE);
  progress.started = __atomic_load_n(&marks_[0], __ATOMIC_ACQUIRE);
  const std::lock_guard lock(notes_mutex_);
  progress.launched = comms_launched_;
  return progress;
}

CommNote Stream::note(uint32_t number) const {
  const std::lock_guard lock(notes_mutex_);
  return notes_[number % kNotes];
}

std::string_view Stream::last_op() const {
  const int kind = last_op_.load();
  return kind < 0 ? std::string_view() : ops::name_of(static_cast<ops::OpKind>(kind));
}

}  // namespace trireme::cuda
