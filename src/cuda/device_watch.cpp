// How a device fails: the first error is kept, the communicator is aborted by the watching thread,
// and whoever waits is told.
#include "base/error.h"
#include "base/text.h"
#include "cuda/device.h"
#include "store/thread.h"

namespace trireme::cuda {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLookEvery{100};
constexpr seconds kBeatEvery{1};
constexpr seconds kAskPeersAfter{10};  // of waiting in one collective
constexpr seconds kAskPeersEvery{5};
constexpr seconds kSilenceLimit{30};
constexpr seconds kAbortLimit{120};

int64_t whole_seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<seconds>(time).count();
}

}  // namespace

std::string Device::signed_by_rank(std::string_view words) const {
  return fmt::format("rank {}, GPU {}: {}", options_.rank, options_.device, words);
}

void Device::fail(std::exception_ptr error, const std::string& words) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  words_ = words;
  host_calls_.close();
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Device::fail_now(const std::string& words) {
  const std::string text = signed_by_rank(words);
  fail(std::make_exception_ptr(DeviceError(text)), text);
}

void Device::throw_if_failed() {
  if (!failed_.load(std::memory_order_acquire)) return;
  {
    // Bounded, like everything the abort does.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kAbortLimit, [&] { return aborted_; });
  }
  // Who catches the error lets go of what host calls use.
  host_calls_.wait(kAbortLimit);
  std::rethrow_exception(error_);
}

void Device::start_watching() {
  watcher_ = store::start_thread("gpu watch", [this] { watch(); });
}

void Device::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  watcher_.join();
}

void Device::watch() {
  (void)cudaSetDevice(options_.device);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, kLookEvery, [&] { return stopping_ || (error_ && !aborted_); });
    if (error_ && !aborted_) abort_after_failure(lock);
    if (stopping_) return;
    if (error_) continue;
    lock.unlock();
    look();
    lock.lock();
  }
}

void Device::abort_after_failure(std::unique_lock<std::mutex>& lock) {
  const std::string words = words_;
  lock.unlock();
  communicator_.abort(words);
  lock.lock();
  aborted_ = true;
  changed_.notify_all();
}

void Device::look() {
  const auto now = Clock::now();
  const auto comm_error = [&](const std::string& words) {
    fail(std::make_exception_ptr(CommError(words)), words);
  };
  try {
    if (const auto failure = communicator_.failure()) return comm_error(*failure);
    if (now >= next_beat_) {
      next_beat_ = now + kBeatEvery;
      communicator_.peers().beat();
      if (const auto end = communicator_.peers().published()) return comm_error(*end);
    }
    const bool ask = now >= next_question_;
    if (ask) next_question_ = now + kAskPeersEvery;
    look_at_stalls(now, ask);
  } catch (const std::exception& error) {
    comm_error(error.what());
  }
}

void Device::look_at_stalls(Clock::time_point now, bool ask_peers) {
  bool anyone_waits = false;
  for (size_t k = 0; k < streams_.size(); ++k) {
    const Stream& stream = *streams_[k];
    Stall& stall = stalls_[k];
    const CommProgress progress = stream.progress();
    if (progress.started != stall.started || progress.done != stall.done || !progress.waits()) {
      stall = {progress.started, progress.done, now};
      continue;
    }
    const auto waited = now - stall.since;
    if (waited < kAskPeersAfter) continue;
    anyone_waits = true;
    if (waited > options_.timeout) {
      throw CommError(signed_by_rank(fmt::format("{} has not ended for {} s\n{}",
                                                 describe_stall(stream, progress),
                                                 whole_seconds(waited), report())));
    }
    if (!ask_peers) continue;
    const CommNote note = stream.note(progress.started);
    if (const auto lost =
            communicator_.peers().silent(communicator_.ranks_of(note.group), kSilenceLimit)) {
      throw CommError(signed_by_rank(
          fmt::format("{}, which waits in {}", *lost, describe_stall(stream, progress))));
    }
  }
  if (!anyone_waits) communicator_.peers().forget();
}

std::string Device::describe_stall(const Stream& stream, const CommProgress& progress) const {
  const CommNote note = stream.note(progress.started);
  return fmt::format(
      "{} on {}",
      describe(note.kind, note.group, note.number, static_cast<size_t>(note.pieces), note.bytes),
      device::name_of(stream.kind()));
}

std::string Device::report() const {
  std::string text;
  for (const auto& stream : streams_) {
    const CommProgress progress = stream->progress();
    if (progress.launched == 0 && stream->last_op().empty()) continue;
    text += fmt::format("  {:<9}", device::name_of(stream->kind()));
    if (progress.launched > 0) {
      text += fmt::format(" collectives: {} launched, {} started, {} ended", progress.launched,
                          progress.started, progress.done);
      if (progress.waits()) text += ", inside " + describe_stall(*stream, progress);
    }
    if (!stream->last_op().empty()) {
      text += fmt::format(" last operation launched: {}", stream->last_op());
    }
    text += stream->query() == cudaSuccess ? "; idle\n" : "; busy\n";
  }
  return text;
}

}  // namespace trireme::cuda
