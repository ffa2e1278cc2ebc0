// One ordered queue of work and the thread that runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <variant>
#include <vector>

#include "device/device.h"

namespace trireme::cpu {

/// A counter that a thread can sleep on until it moves.
class Pulse {
 public:
  uint32_t now() const { return count_.load(std::memory_order_acquire); }
  void beat() {
    count_.fetch_add(1, std::memory_order_acq_rel);
    count_.notify_all();
  }
  void sleep(uint32_t seen) const { count_.wait(seen, std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> count_{0};
};

class Stream;

struct CopyItem {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

struct FillItem {
  void* to = nullptr;
  int64_t bytes = 0;
  uint8_t byte = 0;
};

/// A point in the work of a stream: everything before it is done.
struct Ticket {
  const Stream* stream = nullptr;  // null: never recorded
  int64_t sequence = 0;
};
struct WaitItem {
  Ticket ticket;
};
struct RecordItem {};
struct StopItem {};

/// Plain data.
using StreamItem = std::variant<StopItem, RecordItem, WaitItem, CopyItem, FillItem,
                                device::HostCall, comm::QueuedCall, ops::OpCall>;
enum class ItemKind : uint8_t { stop, record, wait, copy, fill, host, comm, op };  // = index()

/// What a watchdog reads: items are numbered from 1 in launch order.
struct Progress {
  int64_t launched = 0;
  int64_t started = 0;
  int64_t done = 0;
  ItemKind kind = ItemKind::stop;  // of the item started last
  ops::OpKind op{};                // when kind is op
  comm::CommKind comm{};           // when kind is comm, with its group
  int32_t group = 0;
};

/// Runs items. Called on the streams' threads.
class ItemRunner {
 public:
  virtual ~ItemRunner() = default;
  /// Must not throw.
  virtual void run(device::StreamKind stream, int64_t sequence, const StreamItem& item) = 0;
};

/// A ring with one producer (the host thread) and one consumer (its own thread). Nothing is
/// allocated after construction; both ends sleep while they wait, after a spin of under 1 us.
class Stream {
 public:
  Stream(device::StreamKind kind, int64_t capacity, ItemRunner& runner);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Waits for room; returns the item's number.
  template <typename Item>
  int64_t launch(const Item& item) {
    room() = item;
    return publish();
  }
  /// Runs what was launched, then ends the thread. Nothing is launched afterwards.
  void stop();

  /// Launches a mark that wakes those who wait for it.
  Ticket record();
  bool reached(int64_t sequence) const { return done_.load(std::memory_order_acquire) >= sequence; }
  /// Blocks until a recorded ticket is reached.
  void wait_for(int64_t sequence) const;
  bool idle() const;
  Progress progress() const;

 private:
  StreamItem& room();
  int64_t publish();
  void work();
  void announce(int64_t sequence, const StreamItem& item);

  const device::StreamKind kind_;
  ItemRunner& runner_;
  std::vector<StreamItem> ring_;
  alignas(64) std::atomic<int64_t> launched_{0};
  Pulse work_pulse_;  // beats when the thread may sleep for want of work
  alignas(64) std::atomic<int64_t> done_{0};
  Pulse done_pulse_;  // beats at records, and when the producer waits for room
  std::atomic<bool> asleep_{false};
  std::atomic<bool> producer_waits_{false};
  std::atomic<int64_t> started_{0};
  std::atomic<uint64_t> current_{0};  // kind, op or comm kind, group of the started item
  std::thread thread_;
};

}  // namespace trireme::cpu
