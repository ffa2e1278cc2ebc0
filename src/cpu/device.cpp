#include "cpu/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/math.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;

/// Zeroed memory that starts at a multiple of `alignment`.
void* map_aligned(size_t bytes, size_t alignment) {
  const size_t span = bytes + alignment - kPage;
  void* const base =
      mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw_errno("mmap", fmt::format("{} bytes", bytes));
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t start = (address + alignment - 1) / alignment * alignment;
  if (start > address) munmap(base, start - address);
  const size_t rest = address + span - (start + bytes);
  if (rest > 0) munmap(reinterpret_cast<void*>(start + bytes), rest);
  return reinterpret_cast<void*>(start);
}

}  // namespace

Device::Device(OpRunner ops, comm::Communicator& communicator, const DeviceOptions& options)
    : ops_(std::move(ops)), communicator_(communicator), options_(options) {
  ItemRunner& runner = *this;
  for (size_t k = 0; k < streams_.size(); ++k) {
    streams_[k] =
        std::make_unique<Stream>(static_cast<device::StreamKind>(k), options.queue_items, runner);
  }
}

Device::~Device() {
  const bool busy = std::any_of(streams_.begin(), streams_.end(),
                                [](const auto& stream) { return !stream->idle(); });
  if (busy) {
    fail(std::make_exception_ptr(DeviceError("the device ended with work in flight")),
         "the device ended with work in flight");
  }
  // All streams must end before any is freed: waits refer to other streams.
  for (auto& stream : streams_) stream->stop();
  for (const Arena& arena : arenas_) munmap(arena.base, arena.bytes);
}

std::byte* Device::allocate(device::Space space, int64_t bytes) {
  check(bytes >= 0, "an arena of {} bytes", bytes);
  // An empty arena still has an address: a null operand means an absent one.
  const int64_t size = round_up(std::max(bytes, kPage), kPage);
  const bool huge = options_.huge_pages && size >= kHugePage;
  void* const base =
      map_aligned(static_cast<size_t>(size), static_cast<size_t>(huge ? kHugePage : kPage));
  // Only a hint: kernels without huge pages refuse it.
  if (huge) (void)madvise(base, static_cast<size_t>(size), MADV_HUGEPAGE);
  arenas_.push_back({base, static_cast<size_t>(size)});
  allocated_[static_cast<size_t>(space)] += bytes;
  return static_cast<std::byte*>(base);
}

int64_t Device::allocated(device::Space space) const {
  return allocated_[static_cast<size_t>(space)];
}

void Device::launch(device::StreamKind stream, const ops::OpCall& call) { at(stream).launch(call); }

void Device::launch(device::StreamKind stream, const comm::CommCall& call) {
  at(stream).launch(comm::QueuedCall(call));
}

void Device::copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) {
  at(stream).launch(CopyItem{to, from, bytes});
}

void Device::fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) {
  at(stream).launch(FillItem{to, bytes, byte});
}

void Device::call(device::StreamKind stream, const device::HostCall& call) {
  at(stream).launch(call);
}

void Device::create_events(int count) {
  check(events_.empty(), "events are created once");
  events_.resize(static_cast<size_t>(count));
}

Ticket& Device::ticket(int event) {
  check(event >= 0 && event < static_cast<int>(events_.size()), "event {} of {}", event,
        events_.size());
  return events_[static_cast<size_t>(event)];
}

void Device::record(device::StreamKind stream, int event) { ticket(event) = at(stream).record(); }

void Device::wait(device::StreamKind stream, int event) {
  const Ticket point = ticket(event);
  if (point.stream == nullptr || point.stream == &at(stream)) return;
  if (point.stream->reached(point.sequence)) return;
  at(stream).launch(WaitItem{point});
}

void Device::synchronize(int event) {
  const Ticket point = ticket(event);
  if (point.stream != nullptr) point.stream->wait_for(point.sequence);
  if (failed_.load(std::memory_order_acquire)) drain();  // other streams may be inside a host call
}

void Device::drain() {
  std::array<Ticket, device::kNumStreams> ends;
  for (size_t k = 0; k < streams_.size(); ++k) ends[k] = streams_[k]->record();
  for (const Ticket& end : ends) end.stream->wait_for(end.sequence);
  throw_if_failed();
}

int Device::stamp(device::StreamKind stream) {
  const auto note = [](void* seconds, int64_t) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *static_cast<double*>(seconds) = std::chrono::duration<double>(now).count();
  };
  at(stream).launch(device::HostCall{note, &stamps_.emplace_back(), 0});
  return static_cast<int>(stamps_.size()) - 1;
}

double Device::stamped(int number) const { return stamps_.at(static_cast<size_t>(number)); }

void Device::forget_stamps() { stamps_.clear(); }

Progress Device::progress(device::StreamKind stream) const { return at(stream).progress(); }

void Device::run(device::StreamKind stream, int64_t sequence, const StreamItem& item) {
  if (failed_.load(std::memory_order_acquire)) return;
  try {
    if (options_.observer == nullptr) {
      execute(stream, item);
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    execute(stream, item);
    options_.observer->executed(stream, sequence, item, start, std::chrono::steady_clock::now());
  } catch (const std::exception& error) {
    fail(std::current_exception(), error.what());
  } catch (...) {
    fail(std::current_exception(), "unknown exception");
  }
}

void Device::execute(device::StreamKind stream, const StreamItem& item) {
  if (const auto* op = std::get_if<ops::OpCall>(&item)) {
    ops_(stream, *op);
  } else if (const auto* comm = std::get_if<comm::QueuedCall>(&item)) {
    if (options_.delay_collectives.count() > 0) {
      std::this_thread::sleep_for(options_.delay_collectives);
    }
    communicator_.run(comm->get());
  } else if (const auto* copy = std::get_if<CopyItem>(&item)) {
    if (copy->bytes > 0) std::memmove(copy->to, copy->from, static_cast<size_t>(copy->bytes));
  } else if (const auto* fill = std::get_if<FillItem>(&item)) {
    if (fill->bytes > 0) std::memset(fill->to, fill->byte, static_cast<size_t>(fill->bytes));
  } else if (const auto* host = std::get_if<device::HostCall>(&item)) {
    host->function(host->context, host->argument);
  }
}

void Device::fail(std::exception_ptr error, const std::string& words) {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_) return;
    error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  communicator_.abort(words);
}

void Device::throw_if_failed() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(error_mutex_);
  std::rethrow_exception(error_);
}

}  // namespace trireme::cpu
