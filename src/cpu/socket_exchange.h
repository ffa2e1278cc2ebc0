// One collective over connected sockets: all sends and receives in flight at once, sums in
// group-rank order as far as every rank's bytes have come, nothing allocated.
//
// Each pair of ranks exchanges [header | shares to be summed by the receiver | finished shares];
// which of the parts exist depends on the kind. The header lets both sides refuse a call that does
// not match before the payload is used, and costs no round trip.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "cpu/communicator_calls.h"
#include "store/socket.h"

namespace trireme::cpu {

/// A connection ended; why is for the caller to look up.
class LostPeer : public CommError {
 public:
  using CommError::CommError;
};

class SocketExchange {
 public:
  /// `sockets[k]` reaches group rank k (none at `group_rank`); `wake` becomes readable when the
  /// communicator is aborted.
  SocketExchange(std::vector<int> ranks, int group_rank, std::vector<store::Fd> sockets, int wake,
                 std::chrono::milliseconds timeout);

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }
  const std::vector<int>& ranks() const { return ranks_; }

  enum class Outcome { done, aborted };
  /// Blocks. Throws LostPeer for a lost connection, CommError for a mismatch, or when no byte moved
  /// for the timeout. After an exception the streams are unusable.
  Outcome run(const comm::CommCall& call, uint64_t collective_sequence);

  /// Ends the outgoing streams, so that peers learn of it after what was sent. Any thread.
  void shut_down();

 private:
  /// A position in a list of memory ranges: range index and bytes of it that are done.
  struct Cursor {
    int64_t index = 0;
    int64_t offset = 0;
    int64_t done = 0;  // bytes over all ranges
    int64_t total = 0;
    int64_t left() const { return total - done; }
  };
  struct Range {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Channel {
    store::Fd socket;
    uint64_t sent_letters = 0;  // send and recv are counted by pair and direction
    uint64_t received_letters = 0;
    // the current call
    bool active = false;
    CallHeader out_header, in_header;
    int64_t out_header_left = 0, in_header_left = 0;
    Cursor out;           // raw shares, then finished ones
    int64_t out_raw = 0;  // bytes of `out` that are raw
    Cursor rounded;       // elements of the raw shares, with a wire type
    int64_t staged = 0;   // raw bytes received
    Cursor in;            // finished shares, received in place
    std::byte* staging = nullptr;   // ring of raw shares that came
    std::byte* rounding = nullptr;  // ring of those that go, with a wire type
  };

  void begin(const comm::CommCall& call, uint64_t sequence);
  void begin_channel(Channel& channel, int place);
  void plan_sums();
  Range out_range(const Channel& channel, int64_t index) const;
  Range in_range(const Channel& channel, int64_t index) const;
  int64_t out_allowed(const Channel& channel) const;
  int64_t staging_room(const Channel& channel) const;
  bool wants_input(const Channel& channel) const;
  bool finished(const Channel& channel) const;

  int ring_ranges(std::byte* ring, int64_t begin, int64_t bytes, iovec* ranges) const;
  void round_some(Channel& channel);
  int next_ranges(const Channel& channel, std::span<iovec> ranges) const;
  bool push(Channel& channel);
  bool pull(Channel& channel);
  void received(Channel& channel, int64_t bytes);
  void copy_own_share();
  bool sum_some();
  Outcome wait();
  void flush_headers();
  [[noreturn]] void fail_timeout() const;
  [[noreturn]] void lost(const Channel& channel, const std::string& why) const;
  int place_of(const Channel& channel) const {
    return static_cast<int>(&channel - channels_.data());
  }
  int64_t piece_count() const { return static_cast<int64_t>(call_->pieces.size()); }
  int64_t raw_total() const { return sum_total_ * wire_size_; }

  const std::vector<int> ranks_;
  const int rank_;
  const int wake_;
  const std::chrono::milliseconds timeout_;
  std::vector<Channel> channels_;
  std::vector<pollfd> polls_;
  std::vector<const void*> parts_;

  // the current call
  const comm::CommCall* call_ = nullptr;
  int64_t element_size_ = 0;
  int64_t wire_size_ = 0;  // of an element of a raw share
  int64_t sum_total_ = 0;  // elements that this rank sums
  int64_t sum_done_ = 0;
  int64_t sum_piece_ = 0;  // where the next element is
  int64_t sum_offset_ = 0;
  int64_t staging_elements_ = 0;  // of a ring
};

}  // namespace trireme::cpu
