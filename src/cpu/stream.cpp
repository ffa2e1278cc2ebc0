#include "cpu/stream.h"

#include "base/error.h"
#include "store/thread.h"

namespace trireme::cpu {

Stream::Stream(device::StreamKind kind, int64_t capacity, ItemRunner& runner)
    : kind_(kind), runner_(runner), ring_(static_cast<size_t>(capacity)) {
  check(capacity >= 2, "a stream of {} items", capacity);
  thread_ = store::start_thread(std::string(name_of(kind)), [this] { work(); });
}

Stream::~Stream() { stop(); }

void Stream::stop() {
  if (!thread_.joinable()) return;
  launch(StopItem());
  thread_.join();
}

StreamItem& Stream::room() {
  const int64_t next = launched_.load(std::memory_order_relaxed);
  const auto full = [&] {
    return next - done_.load(std::memory_order_seq_cst) >= static_cast<int64_t>(ring_.size());
  };
  while (full()) {
    const uint32_t seen = done_pulse_.now();
    producer_waits_.store(true, std::memory_order_seq_cst);
    if (full()) done_pulse_.sleep(seen);
    producer_waits_.store(false, std::memory_order_relaxed);
  }
  return ring_[static_cast<size_t>(next) % ring_.size()];
}

int64_t Stream::publish() {
  const int64_t sequence = launched_.load(std::memory_order_relaxed) + 1;
  launched_.store(sequence, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) work_pulse_.beat();
  return sequence;
}

Ticket Stream::record() { return {this, launch(RecordItem())}; }

void Stream::wait_for(int64_t sequence) const {
  while (!reached(sequence)) {
    const uint32_t seen = done_pulse_.now();
    if (!reached(sequence)) done_pulse_.sleep(seen);
  }
}

bool Stream::idle() const {
  return done_.load(std::memory_order_acquire) == launched_.load(std::memory_order_acquire);
}

void Stream::announce(int64_t sequence, const StreamItem& item) {
  uint64_t word = item.index();
  if (const auto* op = std::get_if<ops::OpCall>(&item)) {
    word |= static_cast<uint64_t>(op->kind) << 8;
  } else if (const auto* comm = std::get_if<comm::QueuedCall>(&item)) {
    word |= static_cast<uint64_t>(comm->kind()) << 8;
    word |= static_cast<uint64_t>(static_cast<uint32_t>(comm->group())) << 32;
  }
  current_.store(word, std::memory_order_relaxed);
  started_.store(sequence, std::memory_order_release);
}

Progress Stream::progress() const {
  Progress progress;
  progress.done = done_.load(std::memory_order_acquire);
  progress.started = started_.load(std::memory_order_acquire);
  progress.launched = launched_.load(std::memory_order_acquire);
  const uint64_t word = current_.load(std::memory_order_relaxed);
  progress.kind = static_cast<ItemKind>(word & 0xff);
  const auto what = static_cast<uint8_t>((word >> 8) & 0xff);
  if (progress.kind == ItemKind::op) progress.op = static_cast<ops::OpKind>(what);
  if (progress.kind == ItemKind::comm) progress.comm = static_cast<comm::CommKind>(what);
  progress.group = static_cast<int32_t>(word >> 32);
  return progress;
}

void Stream::work() {
  for (int64_t sequence = 1;; ++sequence) {
    while (launched_.load(std::memory_order_seq_cst) < sequence) {
      const uint32_t seen = work_pulse_.now();
      asleep_.store(true, std::memory_order_seq_cst);
      if (launched_.load(std::memory_order_seq_cst) < sequence) work_pulse_.sleep(seen);
      asleep_.store(false, std::memory_order_relaxed);
    }
    const StreamItem& item = ring_[static_cast<size_t>(sequence - 1) % ring_.size()];
    const auto kind = static_cast<ItemKind>(item.index());
    announce(sequence, item);
    if (const auto* wait = std::get_if<WaitItem>(&item)) {
      wait->ticket.stream->wait_for(wait->ticket.sequence);
    } else if (kind != ItemKind::record && kind != ItemKind::stop) {
      runner_.run(kind_, sequence, item);
    }
    done_.store(sequence, std::memory_order_seq_cst);
    if (kind == ItemKind::record || producer_waits_.load(std::memory_order_seq_cst)) {
      done_pulse_.beat();
    }
    if (kind == ItemKind::stop) return;
  }
}

}  // namespace trireme::cpu
