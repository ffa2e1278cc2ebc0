#include <algorithm>
#include <array>

#include "plan/verify.h"

namespace trireme::plan {

namespace {

using Fault = std::optional<std::string>;

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

  void complete(int rank, int stream, int32_t entry) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    r.done[static_cast<size_t>(entry)] = true;
    ++r.next[static_cast<size_t>(stream)];
  }

  Fault advance(int rank, int stream, bool& moved) {
    for (int32_t entry = ready(rank, stream); entry >= 0; entry = ready(rank, stream)) {
      if (entry_of(rank, entry).kind == EntryKind::transfer)
        return meet(rank, stream, entry, moved);
      complete(rank, stream, entry);
      moved = true;
    }
    return std::nullopt;
  }

  Fault meet(int rank, int stream, int32_t entry, bool& moved) {
    const Transfer& mine = transfer_of(rank, entry);
    const std::vector<int> group = members_(rank, mine.axis);
    std::vector<int32_t> entries;
    for (int other : group) {
      const int32_t theirs = ready(other, stream);
      if (theirs < 0 || entry_of(other, theirs).kind != EntryKind::transfer) return std::nullopt;
      if (transfer_of(other, theirs).axis != mine.axis) return std::nullopt;
      if (Fault fault = compare(rank, entry, other, theirs)) return fault;
      entries.push_back(theirs);
    }
    for (size_t i = 0; i < group.size(); ++i) complete(group[i], stream, entries[i]);
    moved = true;
    return std::nullopt;
  }

  Fault compare(int rank, int32_t entry, int other, int32_t theirs) const {
    const Transfer& a = transfer_of(rank, entry);
    const Transfer& b = transfer_of(other, theirs);
    const auto count = [](const TransferPiece& piece) { return piece.count; };
    const bool equal =
        a.kind == b.kind && a.dtype == b.dtype &&
        std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                   [&](const auto& x, const auto& y) { return count(x) == count(y); });
    if (equal) return std::nullopt;
    return fmt::format("rank {} {} meets rank {} {}, which differs in kind, type or size", rank,
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
