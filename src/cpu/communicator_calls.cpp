#include "cpu/communicator_calls.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "cpu/communicator_sum.h"

namespace trireme::cpu {
namespace {

using comm::CommKind;

constexpr uint32_t kHeaderMagic = 0x54524d43;  // "CMRT"

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

bool is_point_to_point(CommKind kind) { return kind == CommKind::send || kind == CommKind::recv; }

// The most elements of a piece that one rank sums.
int64_t summed_elements(CommKind kind, int64_t count, int64_t group_size) {
  if (!sums(kind) || group_size <= 1) return 0;
  return kind == CommKind::all_reduce ? ceil_div(count, group_size) : count;
}

bool match(CommKind mine, CommKind theirs) {
  if (mine == CommKind::send) return theirs == CommKind::recv;
  if (mine == CommKind::recv) return theirs == CommKind::send;
  return mine == theirs;
}

}  // namespace

CallHeader header_of(const comm::CommCall& call, uint64_t sequence) {
  CallHeader header;
  header.magic = kHeaderMagic;
  header.kind = call.kind;
  header.dtype = call.dtype;
  header.wire = call.wire_type();
  header.group = call.group;
  header.root = call.kind == CommKind::broadcast ? call.root : 0;
  header.sequence = sequence;
  header.num_pieces = static_cast<int64_t>(call.pieces.size());
  for (const comm::CommPiece& piece : call.pieces) {
    header.elements += piece.count;
    header.digest = mix(header.digest, static_cast<uint64_t>(piece.count));
  }
  return header;
}

std::optional<std::string> difference(const CallHeader& mine, const CallHeader& theirs) {
  if (theirs.magic != kHeaderMagic) return "it sent bytes that are no call";
  if (theirs.group != mine.group || theirs.sequence != mine.sequence) {
    return fmt::format("it is in {}", describe(theirs));
  }
  if (!match(mine.kind, theirs.kind)) {
    return fmt::format("it calls {}, this rank {}", name_of(theirs.kind), name_of(mine.kind));
  }
  if (theirs.dtype != mine.dtype) {
    return fmt::format("it has dtype {}, this rank {}", name_of(theirs.dtype), name_of(mine.dtype));
  }
  if (theirs.wire != mine.wire) {
    return fmt::format("it sends {}, this rank {}", name_of(theirs.wire), name_of(mine.wire));
  }
  if (theirs.root != mine.root) {
    return fmt::format("it has root {}, this rank {}", theirs.root, mine.root);
  }
  if (theirs.num_pieces != mine.num_pieces) {
    return fmt::format("it has {} pieces, this rank {}", theirs.num_pieces, mine.num_pieces);
  }
  if (theirs.elements != mine.elements || theirs.digest != mine.digest) {
    return fmt::format("it has {} elements in {} pieces, this rank {}{}", theirs.elements,
                       theirs.num_pieces, mine.elements,
                       theirs.elements == mine.elements ? " split otherwise" : "");
  }
  return std::nullopt;
}

std::string describe(const CallHeader& header) {
  return fmt::format("{} on group {}, call {}", name_of(header.kind), header.group,
                     header.sequence);
}

void check_call(const comm::CommCall& call, int group_size, int group_rank) {
  check(group_rank >= 0, "{} on group {}, which this rank is not in", name_of(call.kind),
        call.group);
  check(!sums(call.kind) || can_sum(call.dtype), "{} of {}", name_of(call.kind),
        name_of(call.dtype));
  comm::check_wire(call);
  if (call.kind == CommKind::broadcast || is_point_to_point(call.kind)) {
    check(call.root >= 0 && call.root < group_size, "{}: group rank {} of {}", name_of(call.kind),
          call.root, group_size);
  }
  check(!is_point_to_point(call.kind) || call.root != group_rank, "{} to oneself",
        name_of(call.kind));
  for (const comm::CommPiece& piece : call.pieces) {
    check(piece.count >= 0, "{} of {} elements", name_of(call.kind), piece.count);
  }
  const int64_t workspace_needed = CommSizing().workspace_bytes(call, group_size);
  check(call.workspace_bytes >= workspace_needed, "{}: workspace of {} bytes, {} needed",
        name_of(call.kind), call.workspace_bytes, workspace_needed);
}

Share share_of(int64_t count, int group_size, int rank) {
  const int64_t each = count / group_size;
  const int64_t longer = count % group_size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, longer);
  return {begin, begin + each + (rank < longer ? 1 : 0)};
}

comm::Traffic traffic_of(const comm::CommCall& call, int group_size, int group_rank) {
  int64_t whole = 0;  // elements over all pieces
  int64_t mine = 0;   // elements of this rank's all_reduce shares
  for (const comm::CommPiece& piece : call.pieces) {
    whole += piece.count;
    mine += share_of(piece.count, group_size, group_rank).size();
  }
  const int64_t peers = group_size - 1;
  comm::Traffic traffic{.calls = 1};
  int64_t raw = 0;  // elements of the wire type
  int64_t elements = 0;
  switch (call.kind) {
    case CommKind::all_gather:
    case CommKind::reduce_scatter:
      raw = peers * whole;
      traffic.messages = whole > 0 ? peers : 0;
      break;
    case CommKind::all_reduce: {
      raw = whole - mine;
      elements = peers * mine;
      for (int peer = 0; peer < group_size; ++peer) {
        if (peer == group_rank) continue;
        const bool has_share =
            std::any_of(call.pieces.begin(), call.pieces.end(), [&](const comm::CommPiece& piece) {
              return share_of(piece.count, group_size, peer).size() > 0;
            });
        traffic.messages += (has_share ? 1 : 0) + (mine > 0 ? 1 : 0);
      }
      break;
    }
    case CommKind::broadcast:
      if (call.root != group_rank) break;
      elements = peers * whole;
      traffic.messages = whole > 0 ? peers : 0;
      break;
    case CommKind::send:
      elements = whole;
      traffic.messages = whole > 0 ? 1 : 0;
      break;
    case CommKind::recv:
      break;
  }
  traffic.bytes = raw * size_of(call.wire_type()) + elements * size_of(call.dtype);
  return traffic;
}

int64_t staged_elements(const comm::CommCall& call, int64_t group_size) {
  int64_t elements = 0;
  for (const comm::CommPiece& piece : call.pieces) {
    elements += summed_elements(call.kind, piece.count, group_size);
  }
  return std::min(elements, kStagedElements);
}

int64_t CommSizing::workspace_bytes(const comm::CommCall& call, int64_t group_size) const {
  const int64_t ways = call.wire ? 2 : 1;
  const int64_t of_peer = ways * staged_elements(call, group_size) * size_of(call.wire_type());
  return checked_mul(group_size - 1, of_peer);
}

}  // namespace trireme::cpu
