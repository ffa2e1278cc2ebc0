#include "cpu/inproc.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "cpu/communicator_calls.h"
#include "cpu/communicator_sum.h"

namespace trireme::cpu {
namespace {

using comm::CommCall;
using comm::CommKind;
using Clock = std::chrono::steady_clock;

/// One member's place in a group: what it calls now, and whether it stands at the barrier.
struct Member {
  const CommCall* call = nullptr;
  CallHeader header;
  bool arrived = false;
};

/// A message from one member to another: set by the sender, cleared by it after `taken`.
struct Letter {
  const CommCall* call = nullptr;
  CallHeader header;
  bool taken = false;
  bool read = false;      // right now
  std::string refusal;    // why the receiver did not take it
  uint64_t sent = 0;      // by the sender
  uint64_t received = 0;  // by the receiver
};

struct Group {
  explicit Group(std::vector<int> world_ranks)
      : ranks(std::move(world_ranks)),
        members(ranks.size()),
        letters(ranks.size() * ranks.size()) {}

  const std::vector<int> ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Member> members;
  std::vector<Letter> letters;  // [from * size + to]
  int num_arrived = 0;
  uint64_t generation = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  Letter& letter(int from, int to) {
    return letters[static_cast<size_t>(from) * ranks.size() + static_cast<size_t>(to)];
  }
};

void copy(void* to, const void* from, int64_t elements, DType dtype) {
  if (elements > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(elements * size_of(dtype)));
  }
}

template <typename T>
T* at(T* base, int64_t element, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + element * size_of(dtype);
}

}  // namespace

class InProcessState {
 public:
  InProcessState(int size, std::chrono::milliseconds timeout)
      : timeout_(timeout), ranks_(static_cast<size_t>(size)) {
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    groups_.emplace_back(all);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  void join(int rank) {
    const std::lock_guard lock(mutex_);
    Rank& self = ranks_.at(static_cast<size_t>(rank));
    check(!self.joined, "rank {} joined twice", rank);
    self.joined = true;
  }

  /// The group that is the `index`-th of every rank; made by whoever asks first.
  Group& group(int index, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    if (index == static_cast<int>(groups_.size())) groups_.emplace_back(ranks);
    Group& group = groups_.at(static_cast<size_t>(index));
    if (group.ranks != ranks) {
      throw CommError(fmt::format("group {} has ranks {} here and {} on another rank", index,
                                  fmt::join(ranks, ","), fmt::join(group.ranks, ",")));
    }
    return group;
  }

  /// The reason why `rank` left, or null.
  const std::string* left(int rank) const {
    const Rank& self = ranks_[static_cast<size_t>(rank)];
    return self.left.load(std::memory_order_acquire) ? &self.reason : nullptr;
  }

  /// The first reason stands. Wakes everybody who may wait for the rank.
  void leave(int rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    Rank& self = ranks_[static_cast<size_t>(rank)];
    if (self.left.load()) return;
    self.reason = reason;
    self.left.store(true, std::memory_order_release);
    for (Group& group : groups_) {
      const std::lock_guard group_lock(group.mutex);
      group.changed.notify_all();
    }
  }

 private:
  struct Rank {
    bool joined = false;
    std::atomic<bool> left{false};
    std::string reason;  // written before left
  };

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::deque<Group> groups_;
  std::deque<Rank> ranks_;
};

namespace {

class InProcessCommunicator final : public comm::Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessState> state, int rank)
      : state_(std::move(state)), rank_(rank) {
    std::vector<int> all(static_cast<size_t>(state_->size()));
    std::iota(all.begin(), all.end(), 0);
    add_group(all);
  }
  ~InProcessCommunicator() override { state_->leave(rank_, "it has ended"); }

  int rank() const override { return rank_; }
  int world_size() const override { return state_->size(); }

  int add_group(const std::vector<int>& ranks) override {
    const int index = static_cast<int>(seats_.size());
    Seat& seat = seats_.emplace_back();
    seat.group = &state_->group(index, ranks);
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    if (place != ranks.end()) seat.rank = static_cast<int>(place - ranks.begin());
    seat.parts.resize(ranks.size());
    return index;
  }

  int group_size(int group) const override { return seats_.at(index(group)).group->size(); }
  int group_rank(int group) const override { return seats_.at(index(group)).rank; }

  void run(const CommCall& call) override;
  void abort(const std::string& reason) override { state_->leave(rank_, reason); }

  comm::Traffic traffic(int group) const override {
    const Seat& seat = seats_.at(index(group));
    return {seat.calls.load(), seat.messages.load(), seat.bytes.load()};
  }

 private:
  struct Seat {
    Group* group = nullptr;
    int rank = -1;
    uint64_t sequence = 0;
    std::vector<const void*> parts;  // operands of one sum
    std::atomic<int64_t> calls{0}, messages{0}, bytes{0};
  };

  static size_t index(int group) { return static_cast<size_t>(group); }
  void collective(const CommCall& call, Seat& seat);
  void all_gather(const CommCall& call, Seat& seat);
  static void sum(const CommCall& call, const Seat& seat, void* out, int64_t count);
  void reduce_scatter(const CommCall& call, Seat& seat);
  void all_reduce(const CommCall& call, Seat& seat);
  void broadcast(const CommCall& call, Seat& seat);
  void send(const CommCall& call, Seat& seat);
  void receive(const CommCall& call, Seat& seat);

  /// Until all ranks are in the call. Throws, and is not in it, when one has left.
  void enter(Seat& seat);
  /// Until all that are in the call have come as far. None of them leaves it before, also after an
  /// abort: their memory is read.
  void settle(Seat& seat);
  /// True for the last one, who opens the door to the others.
  static bool arrive(Group& group, Member& self);
  void compare(const Seat& seat) const;
  /// Waits under `lock` until `done`, or throws for an abort, a departed peer (of those that
  /// `concerns` says) or the timeout (naming those that are `missing`).
  template <typename Done, typename Concerns, typename Missing>
  void wait(Group& group, std::unique_lock<std::mutex>& lock, const CallHeader& header, Done done,
            Concerns concerns, Missing missing);

  const std::shared_ptr<InProcessState> state_;
  const int rank_;
  std::deque<Seat> seats_;
};

template <typename Done, typename Concerns, typename Missing>
void InProcessCommunicator::wait(Group& group, std::unique_lock<std::mutex>& lock,
                                 const CallHeader& header, Done done, Concerns concerns,
                                 Missing missing) {
  const auto deadline = Clock::now() + state_->timeout();
  bool late = false;
  while (!done()) {
    if (const std::string* reason = state_->left(rank_)) {
      throw CommError(fmt::format("{}: {}", describe(header), *reason));
    }
    std::string names;
    for (int k = 0; k < group.size(); ++k) {
      const int peer = group.ranks[index(k)];
      if (peer == rank_ || !concerns(k)) continue;
      if (const std::string* reason = state_->left(peer)) {
        throw CommError(fmt::format("{}: lost rank {}: {}", describe(header), peer, *reason));
      }
      if (late && missing(k)) names += fmt::format("{}{}", names.empty() ? "" : ", ", peer);
    }
    if (late) {
      throw CommError(fmt::format("{}: timed out after {} ms waiting for rank {}", describe(header),
                                  state_->timeout().count(), names));
    }
    late = group.changed.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

bool InProcessCommunicator::arrive(Group& group, Member& self) {
  self.arrived = true;
  if (++group.num_arrived < group.size()) return false;
  group.num_arrived = 0;
  for (Member& member : group.members) member.arrived = false;
  ++group.generation;
  group.changed.notify_all();
  return true;
}

void InProcessCommunicator::enter(Seat& seat) {
  Group& group = *seat.group;
  Member& self = group.members[index(seat.rank)];
  std::unique_lock lock(group.mutex);
  const uint64_t generation = group.generation;
  if (arrive(group, self)) return;
  try {
    wait(
        group, lock, self.header, [&] { return group.generation != generation; },
        [](int) { return true; }, [&](int k) { return !group.members[index(k)].arrived; });
  } catch (const CommError&) {
    self.arrived = false;
    --group.num_arrived;
    throw;
  }
}

void InProcessCommunicator::settle(Seat& seat) {
  Group& group = *seat.group;
  std::unique_lock lock(group.mutex);
  const uint64_t generation = group.generation;
  if (arrive(group, group.members[index(seat.rank)])) return;
  group.changed.wait(lock, [&] { return group.generation != generation; });
}

void InProcessCommunicator::compare(const Seat& seat) const {
  const Group& group = *seat.group;
  const CallHeader& mine = group.members[index(seat.rank)].header;
  for (int k = 0; k < group.size(); ++k) {
    if (const auto words = difference(mine, group.members[index(k)].header)) {
      throw CommError(fmt::format("{}: mismatch with rank {}: {}", describe(mine),
                                  group.ranks[index(k)], *words));
    }
  }
}

void InProcessCommunicator::run(const CommCall& call) {
  Seat& seat = seats_.at(index(call.group));
  const int size = seat.group->size();
  check_call(call, size, seat.rank);
  if (const std::string* reason = state_->left(rank_)) {
    throw CommError(fmt::format("{} on group {}: {}", name_of(call.kind), call.group, *reason));
  }
  try {
    if (call.kind == CommKind::send) {
      send(call, seat);
    } else if (call.kind == CommKind::recv) {
      receive(call, seat);
    } else {
      collective(call, seat);
    }
  } catch (const CommError& error) {
    state_->leave(rank_, error.what());
    throw;
  }
  const comm::Traffic sent = traffic_of(call, size, seat.rank);
  seat.calls += sent.calls;
  seat.messages += sent.messages;
  seat.bytes += sent.bytes;
}

void InProcessCommunicator::collective(const CommCall& call, Seat& seat) {
  Member& self = seat.group->members[index(seat.rank)];
  self.call = &call;
  self.header = header_of(call, seat.sequence++);
  enter(seat);
  compare(seat);
  switch (call.kind) {
    case CommKind::all_gather:
      all_gather(call, seat);
      break;
    case CommKind::reduce_scatter:
      reduce_scatter(call, seat);
      break;
    case CommKind::all_reduce:
      all_reduce(call, seat);
      break;
    case CommKind::broadcast:
      broadcast(call, seat);
      break;
    case CommKind::send:
    case CommKind::recv:
      break;
  }
  settle(seat);  // nobody's memory is read any more
}

void InProcessCommunicator::all_gather(const CommCall& call, Seat& seat) {
  for (size_t j = 0; j < call.pieces.size(); ++j) {
    const int64_t count = call.pieces[j].count;
    for (int k = 0; k < seat.group->size(); ++k) {
      const void* from = seat.group->members[index(k)].call->pieces[j].send;
      copy(at(call.pieces[j].recv, k * count, call.dtype), from, count, call.dtype);
    }
  }
}

/// Sums seat.parts.
void InProcessCommunicator::sum(const CommCall& call, const Seat& seat, void* out, int64_t count) {
  const bool add = call.kind == CommKind::reduce_scatter && call.law == ops::Law::add;
  if (call.wire) {
    sum_rounded(static_cast<float*>(out), add, seat.parts, index(seat.rank), call.dtype, count);
  } else {
    sum_in_order(call.dtype, out, add, seat.parts, count);
  }
}

void InProcessCommunicator::reduce_scatter(const CommCall& call, Seat& seat) {
  for (size_t j = 0; j < call.pieces.size(); ++j) {
    const int64_t count = call.pieces[j].count;
    for (int k = 0; k < seat.group->size(); ++k) {
      const void* from = seat.group->members[index(k)].call->pieces[j].send;
      seat.parts[index(k)] = at(from, seat.rank * call.pieces[j].share_stride(), call.dtype);
    }
    sum(call, seat, call.pieces[j].recv, count);
  }
}

void InProcessCommunicator::all_reduce(const CommCall& call, Seat& seat) {
  const int size = seat.group->size();
  for (size_t j = 0; j < call.pieces.size(); ++j) {
    const Share share = share_of(call.pieces[j].count, size, seat.rank);
    for (int k = 0; k < size; ++k) {
      const void* from = seat.group->members[index(k)].call->pieces[j].send;
      seat.parts[index(k)] = at(from, share.begin, call.dtype);
    }
    sum(call, seat, at(call.pieces[j].recv, share.begin, call.dtype), share.size());
  }
  settle(seat);  // every share is summed, and every operand has been read
  for (size_t j = 0; j < call.pieces.size(); ++j) {
    for (int k = 0; k < size; ++k) {
      const Share share = share_of(call.pieces[j].count, size, k);
      const void* from = seat.group->members[index(k)].call->pieces[j].recv;
      if (k == seat.rank) continue;
      copy(at(call.pieces[j].recv, share.begin, call.dtype), at(from, share.begin, call.dtype),
           share.size(), call.dtype);
    }
  }
}

void InProcessCommunicator::broadcast(const CommCall& call, Seat& seat) {
  if (call.root == seat.rank) return;
  for (size_t j = 0; j < call.pieces.size(); ++j) {
    const void* from = seat.group->members[index(call.root)].call->pieces[j].recv;
    copy(call.pieces[j].recv, from, call.pieces[j].count, call.dtype);
  }
}

void InProcessCommunicator::send(const CommCall& call, Seat& seat) {
  Group& group = *seat.group;
  std::unique_lock lock(group.mutex);
  Letter& letter = group.letter(seat.rank, call.root);
  letter.header = header_of(call, letter.sent++);
  letter.call = &call;
  letter.taken = false;
  group.changed.notify_all();
  try {
    wait(
        group, lock, letter.header, [&] { return letter.taken; },
        [&](int k) { return k == call.root; }, [](int) { return true; });
  } catch (const CommError&) {
    group.changed.wait(lock, [&] { return !letter.read; });
    letter.call = nullptr;
    throw;
  }
  letter.call = nullptr;
  if (!letter.refusal.empty()) {
    throw CommError(fmt::format("{}: mismatch with rank {}: {}", describe(letter.header),
                                group.ranks[index(call.root)], letter.refusal));
  }
}

void InProcessCommunicator::receive(const CommCall& call, Seat& seat) {
  Group& group = *seat.group;
  std::unique_lock lock(group.mutex);
  Letter& letter = group.letter(call.root, seat.rank);
  const CallHeader header = header_of(call, letter.received++);
  wait(
      group, lock, header, [&] { return letter.call != nullptr && !letter.taken; },
      [&](int k) { return k == call.root; }, [](int) { return true; });
  const auto words = difference(header, letter.header);
  if (words) {
    letter.refusal = *difference(letter.header, header);
  } else {
    letter.read = true;  // the sender waits: its memory stands still
    lock.unlock();
    for (size_t j = 0; j < call.pieces.size(); ++j) {
      copy(call.pieces[j].recv, letter.call->pieces[j].send, call.pieces[j].count, call.dtype);
    }
    lock.lock();
    letter.read = false;
  }
  letter.taken = true;
  group.changed.notify_all();
  if (words) {
    throw CommError(fmt::format("{}: mismatch with rank {}: {}", describe(header),
                                group.ranks[index(call.root)], *words));
  }
}

}  // namespace

InProcessWorld::InProcessWorld(int size, std::chrono::milliseconds timeout) {
  check(size > 0, "a world of {} ranks", size);
  state_ = std::make_shared<InProcessState>(size, timeout);
}

std::unique_ptr<comm::Communicator> InProcessWorld::join(int rank) {
  state_->join(rank);
  return std::make_unique<InProcessCommunicator>(state_, rank);
}

}  // namespace trireme::cpu
