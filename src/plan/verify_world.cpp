#include <algorithm>
#include <array>

#include "plan/verify.h"

namespace trireme::plan {

namespace {

using Fault = std::optional<std::string>;

/// How the other rank of a pair knows it; a group of equals has one name.
GroupAxis seen_by_other(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::to_next:
      return GroupAxis::from_previous;
    case GroupAxis::from_previous:
      return GroupAxis::to_next;
    case GroupAxis::to_previous:
      return GroupAxis::from_next;
    case GroupAxis::from_next:
      return GroupAxis::to_previous;
    default:
      return axis;
  }
}

/// Runs all ranks' streams as far as they go; transfers complete when every member is ready.
class World {
 public:
  World(const std::vector<const Program*>& ranks, const Members& members)
      : programs_(ranks), members_(members) {
    for (const Program* program : ranks) {
      Rank rank;
      rank.done.assign(program->schedule.size(), false);
      for (size_t i = 0; i < program->schedule.size(); ++i) {
        rank.queues[static_cast<size_t>(program->schedule[i].stream)].push_back(
            static_cast<int32_t>(i));
      }
      ranks_.push_back(std::move(rank));
    }
  }

  Fault run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        for (int s = 0; s < device::kNumStreams; ++s) {
          if (Fault fault = advance(static_cast<int>(r), s, moved)) return fault;
        }
      }
    }
    return find_stuck();
  }

 private:
  struct Rank {
    std::array<std::vector<int32_t>, device::kNumStreams> queues;
    std::array<size_t, device::kNumStreams> next{};
    std::vector<bool> done;
  };

  /// The entry at the head of a stream when all its waits are done, else -1.
  int32_t ready(int rank, int stream) const {
    const Rank& r = ranks_[static_cast<size_t>(rank)];
    const auto s = static_cast<size_t>(stream);
    if (r.next[s] == r.queues[s].size()) return -1;
    const int32_t entry = r.queues[s][r.next[s]];
    for (int32_t wait : entry_of(rank, entry).waits) {
      if (!r.done[static_cast<size_t>(wait)]) return -1;
    }
    return entry;
  }

  const Entry& entry_of(int rank, int32_t entry) const {
    return programs_[static_cast<size_t>(rank)]->schedule[static_cast<size_t>(entry)];
  }
  const Transfer& transfer_of(int rank, int32_t entry) const {
    return programs_[static_cast<size_t>(rank)]
        ->transfers[static_cast<size_t>(entry_of(rank, entry).item)];
  }

  void complete(int rank, int32_t entry) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    r.done[static_cast<size_t>(entry)] = true;
    ++r.next[static_cast<size_t>(entry_of(rank, entry).stream)];
  }

  Fault advance(int rank, int stream, bool& moved) {
    for (int32_t entry = ready(rank, stream); entry >= 0; entry = ready(rank, stream)) {
      if (meeting_of(rank, entry)) return meet(rank, entry, moved);
      complete(rank, entry);
      moved = true;
    }
    return std::nullopt;
  }

  /// The axis on which the ranks of a group start an entry together.
  std::optional<GroupAxis> meeting_of(int rank, int32_t entry) const {
    const Entry& e = entry_of(rank, entry);
    if (e.kind == EntryKind::transfer) return transfer_of(rank, entry).axis;
    if (e.kind != EntryKind::phase) return std::nullopt;
    const Program& program = *programs_[static_cast<size_t>(rank)];
    if (!program.phases[static_cast<size_t>(e.item)].transfers()) return std::nullopt;
    return GroupAxis::tensor;
  }

  /// The entry of `other` that is ready to meet `entry` of `rank`. Equals meet on one stream, the
  /// two of a pair each on its own.
  int32_t ready_for(int other, int rank, int32_t entry) const {
    const GroupAxis mine = *meeting_of(rank, entry);
    const GroupAxis theirs = seen_by_other(mine);
    for (int s = 0; s < device::kNumStreams; ++s) {
      if (theirs == mine && s != static_cast<int>(entry_of(rank, entry).stream)) continue;
      const int32_t candidate = ready(other, s);
      if (candidate >= 0 && meeting_of(other, candidate) == theirs) return candidate;
    }
    return -1;
  }

  Fault meet(int rank, int32_t entry, bool& moved) {
    const std::vector<int> group = members_(rank, *meeting_of(rank, entry));
    std::vector<int32_t> entries;
    for (int other : group) {
      const int32_t theirs = other == rank ? entry : ready_for(other, rank, entry);
      if (theirs < 0) return std::nullopt;
      if (Fault fault = compare(rank, entry, other, theirs)) return fault;
      entries.push_back(theirs);
    }
    for (size_t i = 0; i < group.size(); ++i) complete(group[i], entries[i]);
    moved = true;
    return std::nullopt;
  }

  Fault compare(int rank, int32_t entry, int other, int32_t theirs) const {
    if (entry_of(rank, entry).kind == EntryKind::phase) return std::nullopt;
    const Transfer& a = transfer_of(rank, entry);
    const Transfer& b = transfer_of(other, theirs);
    const auto count = [](const TransferPiece& piece) { return piece.count; };
    const bool pair = rank != other && a.axis != b.axis;
    const bool equal =
        (pair ? a.kind != b.kind : a.kind == b.kind) && a.dtype == b.dtype && a.wire == b.wire &&
        entry_of(rank, entry).micro_batch == entry_of(other, theirs).micro_batch &&
        std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                   [&](const auto& x, const auto& y) { return count(x) == count(y); });
    if (equal) return std::nullopt;
    return fmt::format(
        "rank {} {} meets rank {} {}, which differs in kind, micro-batch, type or size", rank,
        describe(*programs_[static_cast<size_t>(rank)], entry), other,
        describe(*programs_[static_cast<size_t>(other)], theirs));
  }

  Fault find_stuck() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t s = 0; s < ranks_[r].queues.size(); ++s) {
        if (ranks_[r].next[s] == ranks_[r].queues[s].size()) continue;
        const int32_t entry = ranks_[r].queues[s][ranks_[r].next[s]];
        return fmt::format("deadlock: rank {} waits for ever at {}", r,
                           describe(*programs_[r], entry));
      }
    }
    return std::nullopt;
  }

  const std::vector<const Program*>& programs_;
  const Members& members_;
  std::vector<Rank> ranks_;
};

}  // namespace

Fault find_world_fault(const std::vector<const Program*>& ranks, const Members& members) {
  return World(ranks, members).run();
}

}  // namespace trireme::plan
