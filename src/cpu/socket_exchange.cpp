#include "cpu/socket_exchange.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "cpu/communicator_sum.h"

namespace trireme::cpu {
namespace {

using comm::CommKind;
using store::Clock;

constexpr int kMaxRanges = 16;
constexpr int64_t kHeaderBytes = sizeof(CallHeader);
// Elements worth a pass of the sum while more are on their way.
constexpr int64_t kSumGrain = int64_t{16} << 10;
constexpr int64_t kSumMost = int64_t{64} << 10;

std::byte* writable(const void* data) {
  return static_cast<std::byte*>(const_cast<void*>(data));  // only ever read through
}

}  // namespace

SocketExchange::SocketExchange(std::vector<int> ranks, int group_rank,
                               std::vector<store::Fd> sockets, int wake,
                               std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)),
      rank_(group_rank),
      wake_(wake),
      timeout_(timeout),
      channels_(ranks_.size()),
      polls_(ranks_.size() + 1),
      parts_(ranks_.size()) {
  for (size_t k = 0; k < channels_.size(); ++k) channels_[k].socket = std::move(sockets[k]);
}

SocketExchange::Outcome SocketExchange::run(const comm::CommCall& call,
                                            uint64_t collective_sequence) {
  begin(call, collective_sequence);
  for (Channel& channel : channels_) {
    if (channel.active) push(channel);
  }
  copy_own_share();
  for (;;) {
    while (sum_some()) {
      for (Channel& channel : channels_) {
        if (channel.active && out_allowed(channel) > 0) push(channel);
      }
    }
    const bool done = std::all_of(channels_.begin(), channels_.end(),
                                  [&](const Channel& channel) { return finished(channel); });
    if (done && sum_done_ == sum_total_) return Outcome::done;
    if (wait() == Outcome::aborted) return Outcome::aborted;
  }
}

void SocketExchange::begin(const comm::CommCall& call, uint64_t sequence) {
  call_ = &call;
  element_size_ = size_of(call.dtype);
  wire_size_ = size_of(call.wire_type());
  plan_sums();
  const bool letter = call.kind == CommKind::send || call.kind == CommKind::recv;
  for (int place = 0; place < size(); ++place) {
    Channel& channel = channels_[static_cast<size_t>(place)];
    channel.active = place != rank_ && (!letter || place == call.root);
    if (!channel.active) continue;
    const bool sends = call.kind != CommKind::recv;
    const bool receives = call.kind != CommKind::send;
    if (letter) sequence = sends ? channel.sent_letters++ : channel.received_letters++;
    channel.out_header = header_of(call, sequence);
    channel.out_header_left = sends ? kHeaderBytes : 0;
    channel.in_header_left = receives ? kHeaderBytes : 0;
    begin_channel(channel, place);
  }
}

void SocketExchange::begin_channel(Channel& channel, int place) {
  channel.out = Cursor{};
  channel.in = Cursor{};
  channel.out_raw = 0;
  channel.staged = 0;
  channel.rounded = Cursor{};
  const int64_t position = place < rank_ ? place : place - 1;
  const int64_t ring = staging_elements_ * wire_size_;
  channel.staging =
      static_cast<std::byte*>(call_->workspace) + position * (call_->wire ? 2 : 1) * ring;
  channel.rounding = channel.staging + ring;
  for (int64_t j = 0; j < 2 * piece_count(); ++j) {
    const int64_t bytes = out_range(channel, j).bytes;
    channel.out.total += bytes;
    if (j < piece_count()) channel.out_raw += bytes;
  }
  for (int64_t j = 0; j < piece_count(); ++j) channel.in.total += in_range(channel, j).bytes;
}

void SocketExchange::plan_sums() {
  sum_total_ = sum_done_ = sum_piece_ = sum_offset_ = 0;
  staging_elements_ = staged_elements(*call_, size());
  for (const comm::CommPiece& piece : call_->pieces) {
    if (call_->kind == CommKind::reduce_scatter) sum_total_ += piece.count;
    if (call_->kind == CommKind::all_reduce) {
      sum_total_ += share_of(piece.count, size(), rank_).size();
    }
  }
}

/// Index j < pieces: what the peer needs of this rank's operand, and its bytes on the wire; beyond:
/// finished shares.
SocketExchange::Range SocketExchange::out_range(const Channel& channel, int64_t index) const {
  const bool raw = index < piece_count();
  const int64_t j = raw ? index : index - piece_count();
  const comm::CommPiece& piece = call_->pieces[static_cast<size_t>(j)];
  const int place = place_of(channel);
  switch (call_->kind) {
    case CommKind::all_gather:
    case CommKind::send:
      if (raw) return {writable(piece.send), piece.count * element_size_};
      break;
    case CommKind::reduce_scatter: {
      if (!raw) break;
      return {writable(piece.send) + place * piece.share_stride() * element_size_,
              piece.count * wire_size_};
    }
    case CommKind::all_reduce: {
      const Share share = share_of(piece.count, size(), raw ? place : rank_);
      return {writable(raw ? piece.send : piece.recv) + share.begin * element_size_,
              share.size() * (raw ? wire_size_ : element_size_)};
    }
    case CommKind::broadcast:
      if (raw && call_->root == rank_) return {writable(piece.recv), piece.count * element_size_};
      break;
    case CommKind::recv:
      break;
  }
  return {};
}

SocketExchange::Range SocketExchange::in_range(const Channel& channel, int64_t index) const {
  const comm::CommPiece& piece = call_->pieces[static_cast<size_t>(index)];
  const int place = place_of(channel);
  auto* const base = static_cast<std::byte*>(piece.recv);
  const int64_t bytes = piece.count * element_size_;
  switch (call_->kind) {
    case CommKind::all_gather:
      return {base + place * bytes, bytes};
    case CommKind::all_reduce: {
      const Share share = share_of(piece.count, size(), place);
      return {base + share.begin * element_size_, share.size() * element_size_};
    }
    case CommKind::broadcast:
      if (place == call_->root) return {base, bytes};
      break;
    case CommKind::recv:
      return {base, bytes};
    case CommKind::reduce_scatter:
    case CommKind::send:
      break;
  }
  return {};
}

int64_t SocketExchange::out_allowed(const Channel& channel) const {
  // A finished share goes out as far as it is summed.
  const bool gated = channel.out.total > channel.out_raw;
  const int64_t ready = gated ? channel.out_raw + sum_done_ * element_size_ : channel.out.total;
  return channel.out_header_left + ready - channel.out.done;
}

int64_t SocketExchange::staging_room(const Channel& channel) const {
  const int64_t most = std::min(sum_total_, sum_done_ + staging_elements_) * wire_size_;
  return most - channel.staged;
}

bool SocketExchange::wants_input(const Channel& channel) const {
  if (channel.in_header_left > 0) return true;
  if (channel.staged < raw_total()) return staging_room(channel) > 0;
  return channel.in.left() > 0;
}

bool SocketExchange::finished(const Channel& channel) const {
  return !channel.active || (channel.out_header_left == 0 && channel.out.left() == 0 &&
                             !wants_input(channel) && channel.staged == raw_total());
}

/// Where a ring holds bytes [begin, begin + bytes) of what streams through it.
int SocketExchange::ring_ranges(std::byte* ring, int64_t begin, int64_t bytes,
                                iovec* ranges) const {
  const int64_t size = staging_elements_ * wire_size_;
  const int64_t start = begin % size;
  const int64_t before_wrap = std::min(bytes, size - start);
  int count = 0;
  if (before_wrap > 0) ranges[count++] = {ring + start, static_cast<size_t>(before_wrap)};
  if (bytes > before_wrap) ranges[count++] = {ring, static_cast<size_t>(bytes - before_wrap)};
  return count;
}

/// Rounds what goes out next, as far as the ring has room: elements that are sent leave it.
void SocketExchange::round_some(Channel& channel) {
  Cursor& at = channel.rounded;
  const int64_t most =
      std::min(channel.out_raw / wire_size_, channel.out.done / wire_size_ + staging_elements_);
  while (at.done < most) {
    const Range share = out_range(channel, at.index);
    const int64_t slot = at.done % staging_elements_;
    const int64_t left = share.bytes / wire_size_ - at.offset;
    const int64_t count = std::min({most - at.done, left, staging_elements_ - slot});
    round_to_bf16(reinterpret_cast<uint16_t*>(channel.rounding) + slot,
                  reinterpret_cast<const float*>(share.data) + at.offset, count);
    at.done += count;
    at.offset += count;
    if (count == left) at = {at.index + 1, 0, at.done, 0};
  }
}

/// What may go out, where it lies.
int SocketExchange::next_ranges(const Channel& channel, std::span<iovec> ranges) const {
  if (call_->wire && channel.out.done < channel.out_raw) {
    return ring_ranges(channel.rounding, channel.out.done,
                       channel.rounded.done * wire_size_ - channel.out.done, ranges.data());
  }
  size_t count = 0;
  int64_t room = out_allowed(channel) - channel.out_header_left;
  Cursor cursor = channel.out;
  while (count < ranges.size() && room > 0) {
    const Range range = out_range(channel, cursor.index);
    const int64_t bytes = std::min(range.bytes - cursor.offset, room);
    if (bytes > 0) {
      ranges[count++] = {range.data + cursor.offset, static_cast<size_t>(bytes)};
    }
    room -= bytes;
    ++cursor.index;
    cursor.offset = 0;
  }
  return static_cast<int>(count);
}

bool SocketExchange::push(Channel& channel) {
  std::array<iovec, kMaxRanges> ranges;
  int count = 0;
  if (channel.out_header_left > 0) {
    auto* const end = reinterpret_cast<std::byte*>(&channel.out_header + 1);
    ranges[count++] = {end - channel.out_header_left, static_cast<size_t>(channel.out_header_left)};
  }
  if (call_->wire) round_some(channel);
  count += next_ranges(channel, std::span(ranges).subspan(static_cast<size_t>(count)));
  if (count == 0) return false;
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t sent = sendmsg(channel.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    lost(channel,
         errno == EPIPE || errno == ECONNRESET ? "connection closed" : std::strerror(errno));
  }
  const int64_t header = std::min<int64_t>(sent, channel.out_header_left);
  channel.out_header_left -= header;
  for (int64_t left = sent - header; left > 0;) {
    const int64_t bytes = out_range(channel, channel.out.index).bytes - channel.out.offset;
    const int64_t step = std::min(bytes, left);
    channel.out.done += step;
    channel.out.offset += step;
    left -= step;
    if (step == bytes)
      channel.out = {channel.out.index + 1, 0, channel.out.done, channel.out.total};
  }
  return true;
}

bool SocketExchange::pull(Channel& channel) {
  std::array<iovec, kMaxRanges> ranges;
  int count = 0;
  if (channel.in_header_left > 0) {
    auto* const end = reinterpret_cast<std::byte*>(&channel.in_header + 1);
    ranges[count++] = {end - channel.in_header_left, static_cast<size_t>(channel.in_header_left)};
  }
  if (channel.staged < raw_total()) {
    count += ring_ranges(channel.staging, channel.staged, staging_room(channel), &ranges[count]);
  } else {
    Cursor cursor = channel.in;
    for (; count < kMaxRanges && cursor.index < piece_count(); ++cursor.index, cursor.offset = 0) {
      const Range range = in_range(channel, cursor.index);
      const int64_t bytes = range.bytes - cursor.offset;
      if (bytes > 0) ranges[count++] = {range.data + cursor.offset, static_cast<size_t>(bytes)};
    }
  }
  if (count == 0) return false;
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t got = recvmsg(channel.socket.get(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    lost(channel, got == 0 || errno == ECONNRESET ? "connection closed" : std::strerror(errno));
  }
  received(channel, got);
  return true;
}

void SocketExchange::received(Channel& channel, int64_t bytes) {
  if (channel.in_header_left > 0) {
    const int64_t header = std::min(bytes, channel.in_header_left);
    channel.in_header_left -= header;
    bytes -= header;
    if (channel.in_header_left > 0) return;
    const CallHeader& mine = channel.out_header;
    if (const auto words = difference(mine, channel.in_header)) {
      flush_headers();
      throw CommError(fmt::format("{}: mismatch with rank {}: {}", describe(mine),
                                  ranks_[static_cast<size_t>(place_of(channel))], *words));
    }
  }
  if (channel.staged < raw_total()) {
    channel.staged += bytes;
    return;
  }
  while (bytes > 0) {
    const int64_t range = in_range(channel, channel.in.index).bytes - channel.in.offset;
    const int64_t step = std::min(range, bytes);
    channel.in.done += step;
    channel.in.offset += step;
    bytes -= step;
    if (step == range) channel.in = {channel.in.index + 1, 0, channel.in.done, channel.in.total};
  }
}

void SocketExchange::copy_own_share() {
  if (call_->kind != CommKind::all_gather) return;
  for (const comm::CommPiece& piece : call_->pieces) {
    const int64_t bytes = piece.count * element_size_;
    std::byte* const to = static_cast<std::byte*>(piece.recv) + rank_ * bytes;
    if (bytes > 0 && to != piece.send) std::memcpy(to, piece.send, static_cast<size_t>(bytes));
  }
}

/// Sums elements that have come from every rank, up to the end of a piece or of the ring.
bool SocketExchange::sum_some() {
  if (sum_done_ == sum_total_) return false;
  int64_t ready = sum_total_;
  for (const Channel& channel : channels_) {
    if (channel.active) ready = std::min(ready, channel.staged / wire_size_);
  }
  const bool enough =
      ready == sum_total_ || ready - sum_done_ >= std::min(kSumGrain, staging_elements_);
  if (!enough || ready == sum_done_) return false;
  const bool scatter = call_->kind == CommKind::reduce_scatter;
  const comm::CommPiece* piece = nullptr;
  Share share;
  for (;; ++sum_piece_, sum_offset_ = 0) {
    piece = &call_->pieces[static_cast<size_t>(sum_piece_)];
    const int64_t first = rank_ * piece->share_stride();
    share = scatter ? Share{first, first + piece->count}
                    : share_of(piece->count, size(), rank_);
    if (sum_offset_ < share.size()) break;
  }
  // A sum of one rank has no staging.
  const int64_t slot = staging_elements_ > 0 ? sum_done_ % staging_elements_ : 0;
  int64_t count = std::min({ready - sum_done_, share.size() - sum_offset_, kSumMost});
  if (size() > 1) count = std::min(count, staging_elements_ - slot);
  const int64_t own = share.begin + sum_offset_;
  for (size_t k = 0; k < channels_.size(); ++k) {
    parts_[k] = static_cast<int>(k) == rank_ ? writable(piece->send) + own * element_size_
                                             : channels_[k].staging + slot * wire_size_;
  }
  void* const out =
      static_cast<std::byte*>(piece->recv) + (scatter ? sum_offset_ : own) * element_size_;
  const bool add = scatter && call_->law == ops::Law::add;
  if (call_->wire) {
    sum_rounded(static_cast<float*>(out), add, parts_, static_cast<size_t>(rank_), *call_->wire,
                count);
  } else {
    sum_in_order(call_->dtype, out, add, parts_, count);
  }
  sum_done_ += count;
  sum_offset_ += count;
  return true;
}

SocketExchange::Outcome SocketExchange::wait() {
  for (size_t k = 0; k < channels_.size(); ++k) {
    const Channel& channel = channels_[k];
    short events = 0;
    if (channel.active && wants_input(channel)) events |= POLLIN;
    if (channel.active && out_allowed(channel) > 0) events |= POLLOUT;
    polls_[k] = {events != 0 ? channel.socket.get() : -1, events, 0};
  }
  polls_.back() = {wake_, POLLIN, 0};
  const auto deadline = Clock::now() + timeout_;
  for (;;) {
    const int ready = poll(polls_.data(), polls_.size(), store::poll_timeout(deadline));
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) throw_errno("poll", "group sockets");
    if (Clock::now() >= deadline) fail_timeout();
  }
  if (polls_.back().revents != 0) return Outcome::aborted;
  for (size_t k = 0; k < channels_.size(); ++k) {
    if (polls_[k].revents == 0) continue;
    Channel& channel = channels_[k];
    if ((polls_[k].events & POLLIN) != 0) pull(channel);
    if ((polls_[k].events & POLLOUT) != 0) push(channel);
  }
  return Outcome::done;
}

/// Before this rank fails of a mismatch, the others get what they need to see it too.
void SocketExchange::flush_headers() {
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  for (Channel& channel : channels_) {
    if (!channel.active || channel.out_header_left == 0) continue;
    const auto* end = reinterpret_cast<const std::byte*>(&channel.out_header + 1);
    const auto left = static_cast<size_t>(channel.out_header_left);
    (void)store::send_all(channel.socket.get(), {end - left, left}, deadline);
  }
}

void SocketExchange::fail_timeout() const {
  std::string names;
  for (size_t k = 0; k < channels_.size(); ++k) {
    const Channel& channel = channels_[k];
    if (finished(channel)) continue;
    const int64_t expected = raw_total() + channel.in.total;
    const int64_t got = channel.staged + channel.in.done;
    if (!names.empty()) names += ", ";
    if (channel.in_header_left > 0) {
      names += fmt::format("rank {} (not in the call)", ranks_[k]);
    } else if (got < expected) {
      names += fmt::format("rank {} (sent {} of {} bytes)", ranks_[k], got, expected);
    } else {
      names += fmt::format("rank {} (takes no bytes)", ranks_[k]);
    }
  }
  const auto active = std::find_if(channels_.begin(), channels_.end(),
                                   [](const Channel& channel) { return channel.active; });
  throw CommError(fmt::format("{}: timed out after {} ms waiting for {}",
                              describe(active->out_header), timeout_.count(), names));
}

/// A rank that fails ends its sending side first and its process later, so a connection that is
/// gone in both directions points closer to the cause than the one that was noticed.
void SocketExchange::lost(const Channel& channel, const std::string& why) const {
  std::string gone;
  for (size_t k = 0; k < channels_.size(); ++k) {
    if (!channels_[k].socket.valid()) continue;
    pollfd entry{channels_[k].socket.get(), 0, 0};
    if (poll(&entry, 1, 0) <= 0 || (entry.revents & (POLLHUP | POLLERR)) == 0) continue;
    gone += fmt::format("{}rank {}", gone.empty() ? "" : " and ", ranks_[k]);
  }
  const int rank = ranks_[static_cast<size_t>(place_of(channel))];
  if (gone.empty()) gone = fmt::format("rank {}", rank);
  throw LostPeer(fmt::format("{}: lost {}: {}", describe(channel.out_header), gone, why));
}

void SocketExchange::shut_down() {
  for (const Channel& channel : channels_) {
    if (channel.socket.valid()) ::shutdown(channel.socket.get(), SHUT_WR);
  }
}

}  // namespace trireme::cpu
