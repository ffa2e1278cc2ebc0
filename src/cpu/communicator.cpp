#include "cpu/communicator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "cpu/communicator_calls.h"
#include "cpu/socket_exchange.h"
#include "cpu/socket_mesh.h"

namespace trireme::cpu {
namespace {

// Where the first rank that fails says why.
constexpr std::string_view kFailureCount = "comm/failures";
constexpr std::string_view kFirstFailure = "comm/first_failure";
// How long a survivor waits for that reason: a killed rank gives none.
constexpr auto kReasonTime = std::chrono::milliseconds(300);

class ProcessCommunicator final : public comm::Communicator {
 public:
  ProcessCommunicator(comm::Store& store, const WorldOptions& options)
      : store_(store),
        options_(options),
        mesh_(store, options.rank, options.world_size, options.host, options.connect_timeout),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.valid()) throw_errno("eventfd", "communicator");
    std::vector<int> all(static_cast<size_t>(options.world_size));
    std::iota(all.begin(), all.end(), 0);
    add_group(all);
  }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  int add_group(const std::vector<int>& ranks) override {
    const int handle = static_cast<int>(groups_.size());
    agree_on(handle, ranks);
    std::unique_ptr<SocketExchange> exchange;
    const auto place = std::find(ranks.begin(), ranks.end(), options_.rank);
    if (place != ranks.end()) {
      exchange = std::make_unique<SocketExchange>(ranks, static_cast<int>(place - ranks.begin()),
                                                  mesh_.connect_group(handle, ranks), wake_.get(),
                                                  options_.timeout);
    }
    const std::lock_guard lock(mutex_);
    Group& group = groups_.emplace_back();
    group.size = static_cast<int>(ranks.size());
    group.exchange = std::move(exchange);
    return handle;
  }

  int group_size(int group) const override { return at(group).size; }
  int group_rank(int group) const override {
    const auto& exchange = at(group).exchange;
    return exchange ? exchange->rank() : -1;
  }

  void run(const comm::CommCall& call) override;
  void abort(const std::string& reason) override { fail(reason); }

  comm::Traffic traffic(int group) const override {
    const Group& entry = at(group);
    return {entry.calls.load(), entry.messages.load(), entry.bytes.load()};
  }

 private:
  struct Group {
    int size = 0;
    std::unique_ptr<SocketExchange> exchange;  // null outside the group
    uint64_t collectives = 0;
    std::atomic<int64_t> calls{0}, messages{0}, bytes{0};
  };

  const Group& at(int group) const { return groups_.at(static_cast<size_t>(group)); }
  void agree_on(int handle, const std::vector<int>& ranks);
  void fail(const std::string& reason);
  std::string reason() const;
  std::string first_failure();

  comm::Store& store_;
  const WorldOptions options_;
  SocketMesh mesh_;
  store::Fd wake_;
  std::deque<Group> groups_;

  mutable std::mutex mutex_;  // of groups_ against abort, and of reason_
  std::string reason_;
  std::atomic<bool> failed_{false};
};

void ProcessCommunicator::agree_on(int handle, const std::vector<int>& ranks) {
  const std::string key = fmt::format("comm/group/{}", handle);
  const std::string mine = fmt::format("{}", fmt::join(ranks, ","));
  if (options_.rank == 0) store_.set(key, mine);
  const std::string first = store_.get(key, options_.connect_timeout);
  if (first != mine) {
    throw CommError(
        fmt::format("group {} has ranks {} here and {} on rank 0", handle, mine, first));
  }
}

void ProcessCommunicator::run(const comm::CommCall& call) {
  Group& group = groups_.at(static_cast<size_t>(call.group));
  const int place = group_rank(call.group);
  check_call(call, group.size, place);
  const auto words = [&] { return fmt::format("{} on group {}", name_of(call.kind), call.group); };
  if (failed_.load(std::memory_order_acquire)) {
    throw CommError(fmt::format("{}: {}", words(), reason()));
  }
  const bool letter = call.kind == comm::CommKind::send || call.kind == comm::CommKind::recv;
  const uint64_t sequence = letter ? 0 : group.collectives++;
  try {
    if (group.exchange->run(call, sequence) == SocketExchange::Outcome::aborted) {
      throw CommError(fmt::format("{}, call {}: {}", words(), sequence, reason()));
    }
  } catch (const LostPeer& error) {
    const std::string why = first_failure();
    const std::string sentence =
        why.empty() ? error.what() : fmt::format("{} ({})", error.what(), why);
    fail(sentence);
    throw CommError(sentence);
  } catch (const CommError& error) {
    fail(error.what());
    throw;
  }
  const comm::Traffic sent = traffic_of(call, group.size, place);
  group.calls += sent.calls;
  group.messages += sent.messages;
  group.bytes += sent.bytes;
}

/// The first reason stands. Blocked calls of this rank wake first; then the reason is left in the
/// store, and only then do the peers see their connections end.
void ProcessCommunicator::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    reason_ = reason;
    failed_.store(true, std::memory_order_release);
  }
  const uint64_t one = 1;
  check(write(wake_.get(), &one, sizeof one) == sizeof one, "eventfd write failed");
  try {
    if (store_.add(kFailureCount, 1) == 1) {
      store_.set(kFirstFailure, fmt::format("rank {}: {}", options_.rank, reason));
    }
  } catch (const CommError&) {
    // The store is gone: survivors learn the fact without the reason.
  }
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) {
    if (group.exchange) group.exchange->shut_down();
  }
}

std::string ProcessCommunicator::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

/// What the rank that failed first left in the store; empty when there is nothing.
std::string ProcessCommunicator::first_failure() {
  try {
    const auto deadline = store::Clock::now() + kReasonTime;
    for (;;) {
      if (const auto text = store_.try_get(kFirstFailure)) return *text;
      if (store::Clock::now() >= deadline) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (const CommError&) {
    return {};
  }
}

}  // namespace

std::unique_ptr<comm::Communicator> connect_processes(comm::Store& store,
                                                      const WorldOptions& options) {
  return std::make_unique<ProcessCommunicator>(store, options);
}

}  // namespace trireme::cpu
