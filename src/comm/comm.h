// Collectives and the store between processes: contracts only.
//
// Reduction law (every backend whose sums are ordered): out = (add ? out : 0) + (((g0+g1)+g2)+...)
// in f32/f64, elements added in group-rank order, so that a result does not depend on timing or on
// how the ranks are housed. all_reduce = reduce_scatter + all_gather, bit for bit. With a `wire`
// type every g, the summing rank's own too, is first rounded to it, once, to nearest even; the sums
// are not rounded, also where an all_reduce hands them out.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ops/op.h"

namespace trireme::comm {

enum class CommKind : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, send, recv };
std::string_view name_of(CommKind kind);
/// Of reduce_scatter and all_reduce.
bool sums(CommKind kind);

/// One buffer of a grouped collective. `count` = elements of one rank's share (all_gather,
/// reduce_scatter) or of the whole message (all_reduce, broadcast, send, recv).
///   all_gather      send(count) of every rank -> recv(n * count) in group-rank order;
///                   send may be its own place in recv
///   reduce_scatter  send: n shares of count, `stride` elements from one to the next;
///                   recv(count) law= the sum of share `rank`;
///                   recv may be that share of send; the other shares of send are left unchanged,
///                   that share may be overwritten when the law is add
///   all_reduce      send(count) -> recv(count), may be the same
///   broadcast       from group rank `root`; recv(count) on all, in place on the root
struct CommPiece {
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  int64_t stride = 0;  // reduce_scatter; 0: count
  int64_t share_stride() const { return stride == 0 ? count : stride; }
};

/// One call: all pieces travel as one transaction. Plain data.
struct CommCall {
  CommKind kind{};
  int32_t group = 0;  // handle from Communicator::add_group
  DType dtype = DType::f32;
  /// What contributions to a sum of f32 travel as: bf16. nullopt: as they are.
  std::optional<DType> wire = {};
  ops::Law law = ops::Law::set;       // reduce_scatter
  int32_t root = 0;                   // broadcast: group rank; send, recv: peer's group rank
  std::span<const CommPiece> pieces;
  void* workspace = nullptr;          // staging, see CommSizing
  int64_t workspace_bytes = 0;
  DType wire_type() const { return wire.value_or(dtype); }
};

/// BugError for a wire type other than bf16, or of what is no sum of f32.
void check_wire(const CommCall& call);

/// A call that waits in a queue: a single piece travels with it, several stay where the caller keeps
/// them.
class QueuedCall {
 public:
  explicit QueuedCall(const CommCall& call) : call_(call) {
    if (call.pieces.size() == 1) piece_ = call.pieces[0];
  }
  /// Valid as long as this object stays where it is.
  CommCall get() const {
    CommCall call = call_;
    if (call.pieces.size() == 1) call.pieces = {&piece_, 1};
    return call;
  }
  CommKind kind() const { return call_.kind; }
  int32_t group() const { return call_.group; }

 private:
  CommCall call_;
  CommPiece piece_;
};

/// Staging rules of a backend, known at plan time.
class CommSizing {
 public:
  virtual ~CommSizing() = default;
  /// Of a call in a group of so many ranks; addresses are not looked at.
  virtual int64_t workspace_bytes(const CommCall& call, int64_t group_size) const = 0;
};

/// Counts of what one rank sent, for tests and reports: payload alone, and one message for each
/// peer that gets bytes (all_reduce: for each of its two halves), however a backend cuts them. With
/// n ranks, all_gather and reduce_scatter send (n-1) * count elements, all_reduce its raw shares to
/// their owners and the own finished share to all: 2 (n-1) / n * count. Raw shares are of the wire
/// type.
struct Traffic {
  int64_t calls = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
};

/// The collectives of one rank over every group it belongs to. Groups are made at start, by every
/// rank of the world in the same order; none is created later. Blocking; a call is matched by
/// (group, order of calls in the group); send and recv by their order among those of the same two
/// ranks and direction. A send may return before its recv began, or wait for it. One thread per
/// group at a time; different groups may run on different threads at once.
///
/// Errors: CommError naming group, operation, sequence number and the peer, on a lost peer, a
/// mismatch (kind, dtype, wire or count differ between ranks) or a timeout; every later call throws
/// too.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Collective over the world; `ranks` in group-rank order. Returns a dense handle. A rank outside
  /// the group gets a handle it must not use. Group 0 is the world, made by the constructor.
  virtual int add_group(const std::vector<int>& ranks) = 0;
  virtual int group_size(int group) const = 0;
  /// This rank's place in the group; -1 outside it.
  virtual int group_rank(int group) const = 0;
  virtual void run(const CommCall& call) = 0;
  /// Wakes every blocked call of this rank, here and later, with CommError(reason). Any thread.
  virtual void abort(const std::string& reason) = 0;
  virtual Traffic traffic(int group) const = 0;
};

/// Key-value store between the processes of a job. All calls throw CommError on timeout or a lost
/// server. Values are bytes.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Blocks until the key exists.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  /// Atomically adds to a decimal counter (absent = 0); returns the new value.
  virtual int64_t add(std::string_view key, int64_t amount) = 0;
};

}  // namespace trireme::comm
