#include "cuda/device.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/comm_kernels.h"

namespace trireme::cuda {

namespace {

using device::StreamKind;

constexpr int64_t kMarkBytes = 64;  // a stream's two words, on a cache line of their own
constexpr std::chrono::seconds kStopLimit{10};

bool is_comm(StreamKind kind) {
  return kind != StreamKind::compute && kind != StreamKind::copy_in && kind != StreamKind::copy_out;
}

/// 20 us between looks cost a wait of a step nothing, and a busy host thread less than a tenth of a
/// core.
void pause(int64_t looks) {
  if (looks > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

Device::Device(OpLauncher ops, NcclCommunicator& communicator, const DeviceOptions& options)
    : ops_(std::move(ops)),
      communicator_(communicator),
      options_(options),
      marks_(device::Space::pinned, kMarkBytes * device::kNumStreams) {
  HostCallRunner& runner = *this;
  int lowest = 0;
  int highest = 0;
  TRIREME_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (size_t k = 0; k < streams_.size(); ++k) {
    const auto kind = static_cast<StreamKind>(k);
    auto* marks = reinterpret_cast<uint32_t*>(marks_.base() + static_cast<int64_t>(k) * kMarkBytes);
    streams_[k] =
        std::make_unique<Stream>(kind, is_comm(kind) ? highest : lowest, marker_, marks, runner);
    drain_events_.emplace_back();
  }
  start_watching();
}

Device::~Device() {
  bool idle = std::all_of(streams_.begin(), streams_.end(),
                          [](const auto& stream) { return stream->query() == cudaSuccess; });
  if (!idle) fail_now("the device ended with work in flight");
  stop_watching();
  const auto deadline = Clock::now() + kStopLimit;
  while (!idle && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    idle = std::none_of(streams_.begin(), streams_.end(),
                        [](const auto& stream) { return stream->query() == cudaErrorNotReady; });
  }
  communicator_.close();
  if (idle) return;
  for (Arena& arena : arenas_) arena.leak();
  marks_.leak();
  for (auto& stream : streams_) {
    stream->abandon();
    (void)stream.release();
  }
  host_calls_.wait(kStopLimit);  // the one that is inside this device
}

std::byte* Device::allocate(device::Space space, int64_t bytes) {
  const Arena& arena = arenas_.emplace_back(space, bytes);
  allocated_[static_cast<size_t>(space)] += bytes;
  if (space == device::Space::device) communicator_.register_buffer(arena.base(), bytes);
  return arena.base();
}

int64_t Device::allocated(device::Space space) const {
  return allocated_[static_cast<size_t>(space)];
}

/// Runs `body` unless something failed; what it throws fails the device, as work that failed later
/// would.
template <typename Body>
void Device::launched(const Body& body) {
  if (failed_.load(std::memory_order_acquire)) return;
  try {
    body();
  } catch (const DeviceError& error) {
    const std::string words = signed_by_rank(error.what());
    fail(std::make_exception_ptr(DeviceError(words)), words);
  } catch (const std::exception& error) {
    fail(std::current_exception(), error.what());
  }
}

void Device::launch(StreamKind stream, const ops::OpCall& call) {
  launched([&] {
    at(stream).set_last_op(call.kind);
    ops_(call, at(stream).get());
  });
}

void Device::launch(StreamKind stream, const comm::CommCall& call) {
  launched([&] {
    Stream& queue = at(stream);
    if (static_cast<size_t>(call.group) >= comm_numbers_.size()) {
      comm_numbers_.resize(static_cast<size_t>(call.group) + 1);
    }
    CommNote note{call.kind, call.group, comm_numbers_[static_cast<size_t>(call.group)]++,
                  static_cast<int64_t>(call.pieces.size()), 0};
    for (const comm::CommPiece& piece : call.pieces) {
      note.bytes += piece.count * size_of(call.dtype);
    }
    delay(options_.delay_collectives, queue.get());
    queue.begin(note);
    communicator_.enqueue(call, queue.get());
    queue.end();
  });
}

void Device::copy(StreamKind stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  launched([&] {
    TRIREME_CUDA(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, at(stream).get()));
  });
}

void Device::fill(StreamKind stream, void* to, uint8_t byte, int64_t bytes) {
  if (bytes == 0) return;
  launched([&] {
    const bool pinned = std::any_of(arenas_.begin(), arenas_.end(), [&](const Arena& arena) {
      return arena.space() == device::Space::pinned && arena.contains(to);
    });
    if (pinned) {
      fill_bytes(to, byte, bytes, at(stream).get());
    } else {
      TRIREME_CUDA(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), at(stream).get()));
    }
  });
}

void Device::call(StreamKind stream, const device::HostCall& call) {
  launched([&] {
    Stream& queue = at(stream);
    for (int64_t looks = 0; !queue.has_room(); ++looks) {
      if (failed_.load(std::memory_order_acquire)) return;
      const cudaError_t state = queue.query();
      if (state != cudaErrorNotReady) require(state, "cudaStreamQuery");
      pause(looks);
    }
    queue.launch(call);
  });
}

void Device::run_host_call(const device::HostCall& call) noexcept {
  if (!host_calls_.begin()) return;
  try {
    call.function(call.context, call.argument);
  } catch (const std::exception& error) {
    fail(std::current_exception(), error.what());
  } catch (...) {
    fail(std::current_exception(), "unknown exception");
  }
  host_calls_.end();
}

void Device::create_events(int count) {
  check(events_.empty(), "events are created once");
  for (int i = 0; i < count; ++i) events_.emplace_back();
  recorded_on_.assign(static_cast<size_t>(count), -1);
}

cudaEvent_t Device::event_at(int event) const {
  check(event >= 0 && static_cast<size_t>(event) < events_.size(), "event {} of {}", event,
        events_.size());
  return events_[static_cast<size_t>(event)].get();
}

void Device::record(StreamKind stream, int event) {
  cudaEvent_t handle = event_at(event);
  launched([&] {
    TRIREME_CUDA(cudaEventRecord(handle, at(stream).get()));
    recorded_on_[static_cast<size_t>(event)] = static_cast<int>(stream);
  });
}

void Device::wait(StreamKind stream, int event) {
  cudaEvent_t handle = event_at(event);
  const int recorded = recorded_on_[static_cast<size_t>(event)];
  if (recorded < 0 || recorded == static_cast<int>(stream)) return;
  launched([&] { TRIREME_CUDA(cudaStreamWaitEvent(at(stream).get(), handle, 0)); });
}

void Device::wait_for(cudaEvent_t event) {
  for (int64_t looks = 0;; ++looks) {
    throw_if_failed();
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) break;
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it would stay behind and be taken for a failed launch
      pause(looks);
      continue;
    }
    launched([&] { require(state, "the work on the GPU"); });
  }
  // A host call that failed, or an abort that let collectives end, came before the event.
  throw_if_failed();
}

void Device::synchronize(int event) {
  cudaEvent_t handle = event_at(event);
  throw_if_failed();
  if (recorded_on_[static_cast<size_t>(event)] >= 0) wait_for(handle);
}

int Device::stamp(StreamKind stream) {
  const size_t number = num_stamps_++;
  if (number == stamps_.size()) stamps_.emplace_back(cudaEventDefault);
  launched([&] { TRIREME_CUDA(cudaEventRecord(stamps_[number].get(), at(stream).get())); });
  return static_cast<int>(number);
}

double Device::stamped(int number) const {
  check(number >= 0 && static_cast<size_t>(number) < num_stamps_, "time {} of {}", number,
        num_stamps_);
  float milliseconds = 0;
  TRIREME_CUDA(cudaEventElapsedTime(&milliseconds, stamps_.front().get(),
                                    stamps_[static_cast<size_t>(number)].get()));
  return double{milliseconds} / 1000;
}

void Device::forget_stamps() { num_stamps_ = 0; }

void Device::drain() {
  for (size_t k = 0; k < streams_.size(); ++k) {
    launched([&] { TRIREME_CUDA(cudaEventRecord(drain_events_[k].get(), streams_[k]->get())); });
  }
  throw_if_failed();
  for (const EventHandle& event : drain_events_) wait_for(event.get());
}

}  // namespace trireme::cuda
