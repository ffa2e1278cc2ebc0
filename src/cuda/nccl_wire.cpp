// Sums of contributions that travel as bf16: rounded into places of the staging, exchanged in
// pairs, and added in group-rank order.
#include <algorithm>

#include "base/math.h"
#include "cuda/comm_sizing.h"
#include "cuda/nccl_communicator.h"

namespace trireme::cuda {

namespace {

using comm::CommCall;
using comm::CommKind;
using comm::CommPiece;

/// Where the shares of a piece lie in `send`: from one to the next `stride` elements; what lies
/// from `limit` on is nobody's.
struct Shares {
  int64_t stride = 0;
  int64_t limit = 0;
  /// Of elements [first, first + count) of a rank's share, those that there are.
  int64_t within(int rank, int64_t first, int64_t count) const {
    return std::clamp<int64_t>(limit - rank * stride - first, 0, count);
  }
};

Shares shares_of(const CommCall& call, const CommPiece& piece, int64_t size) {
  if (call.kind == CommKind::all_reduce) return {wire_share(call, piece, size), piece.count};
  return {piece.share_stride(), size * piece.share_stride()};
}

/// `count` elements of each rank's share of a piece, from its element `first` on, that lie at
/// element `at` of a place.
struct Part {
  const CommPiece& piece;
  int64_t first, count, at;
};

/// Visits what elements [begin, end) of a rank's shares, laid one after the other, hold.
template <typename Visit>
void for_each_part(const CommCall& call, int64_t size, int64_t begin, int64_t end,
                   const Visit& visit) {
  int64_t line = 0;
  for (const CommPiece& piece : call.pieces) {
    const int64_t share = wire_share(call, piece, size);
    const int64_t first = std::max<int64_t>(begin - line, 0);
    const int64_t last = std::min(end - line, share);
    if (first < last) visit(Part{piece, first, last - first, line + first - begin});
    line += round_up(share, kStagedAlignment);
  }
}

WirePlaces from_element(WirePlaces places, int64_t element) {
  places.first += element;
  return places;
}

}  // namespace

void NcclCommunicator::sum_over_wire(const CommCall& call, Group& group, cudaStream_t stream) {
  const int size = group.size();
  const int peers = size - 1;
  const int64_t total = wire_elements(call, size);
  const int64_t room = size == 1 ? total : staged_elements(call, size);
  auto* const staging = static_cast<uint16_t*>(call.workspace);
  const WirePlaces out{staging, room, peers, group.rank};
  const WirePlaces in{staging + peers * room, room, peers, group.rank};
  const bool scatters = call.kind == CommKind::reduce_scatter;
  const bool add = scatters && call.law == ops::Law::add;
  for (int64_t begin = 0; begin < total; begin += room) {
    const int64_t end = std::min(total, begin + room);
    for_each_part(call, size, begin, end, [&](const Part& part) {
      const Shares shares = shares_of(call, part.piece, size);
      const auto* from = static_cast<const float*>(part.piece.send) + part.first;
      round_shares(from_element(out, part.at), {from, shares.stride, shares.limit - part.first},
                   part.count, stream);
    });
    if (peers > 0) {
      launch_together(comm::name_of(call.kind), group, [&](ncclComm_t comm) {
        return exchange_places(out, in, end - begin, comm, stream);
      });
    }
    for_each_part(call, size, begin, end, [&](const Part& part) {
      const Shares shares = shares_of(call, part.piece, size);
      const int64_t own = group.rank * shares.stride + part.first;
      sum_rounded(static_cast<float*>(part.piece.recv) + (scatters ? part.first : own), add,
                  static_cast<const float*>(part.piece.send) + own, from_element(in, part.at),
                  shares.within(group.rank, part.first, part.count), stream);
    });
  }
  if (scatters || peers == 0) return;
  launch_together(comm::name_of(call.kind), group,
                  [&](ncclComm_t comm) { return hand_out_sums(call, group, comm, stream); });
}

ncclResult_t NcclCommunicator::exchange_places(const WirePlaces& out, const WirePlaces& in,
                                               int64_t count, ncclComm_t comm,
                                               cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(count * size_of(DType::bf16));
  ncclResult_t result = ncclSuccess;
  for (int place = 0; place < out.num && result == ncclSuccess; ++place) {
    const int peer = place < out.own ? place : place + 1;
    result = api_->send(out.first + place * out.stride, bytes, ncclInt8, peer, comm, stream);
    if (result != ncclSuccess) break;
    result = api_->recv(in.first + place * in.stride, bytes, ncclInt8, peer, comm, stream);
  }
  return result;
}

/// The second half of an all_reduce: every rank's finished share to all.
ncclResult_t NcclCommunicator::hand_out_sums(const CommCall& call, const Group& group,
                                             ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result = ncclSuccess;
  for (const CommPiece& piece : call.pieces) {
    const Shares shares = shares_of(call, piece, group.size());
    const auto at = [&](int rank) {
      return static_cast<float*>(piece.recv) + rank * shares.stride;
    };
    const auto bytes = [&](int rank) {
      return static_cast<size_t>(shares.within(rank, 0, shares.stride) * size_of(call.dtype));
    };
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank) continue;
      if (result == ncclSuccess && bytes(group.rank) > 0) {
        result = api_->send(at(group.rank), bytes(group.rank), ncclInt8, peer, comm, stream);
      }
      if (result == ncclSuccess && bytes(peer) > 0) {
        result = api_->recv(at(peer), bytes(peer), ncclInt8, peer, comm, stream);
      }
    }
  }
  return result;
}

}  // namespace trireme::cuda
