// How attention cuts a sequence: blocks of queries and keys, and inside a block only those runs of
// 16 keys by vectors of 16 queries that the causal mask and the window leave visible.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace trireme::cpu {

inline constexpr int64_t kBlock = 64;       // queries, and keys, of a block
inline constexpr int64_t kQueryLanes = 16;  // queries handled together
inline constexpr int64_t kRunKeys = 16;     // keys masked together
inline constexpr int64_t kBlockRuns = kBlock / kRunKeys;
inline constexpr int64_t kItemBlocks = 4;  // of a work item that is not a whole sequence

/// Queries [first, first + count) or keys of one sequence; first is a multiple of kBlock.
struct Block {
  int64_t first;
  int64_t count;
  int64_t vectors() const { return (count + kQueryLanes - 1) / kQueryLanes; }
  int64_t end() const { return first + count; }
};

inline int64_t num_blocks(int64_t length) { return (length + kBlock - 1) / kBlock; }
inline Block block_at(int64_t index, int64_t length) {
  return {index * kBlock, std::min(kBlock, length - index * kBlock)};
}

/// The key blocks that some query of a block sees: [begin, end).
struct KeyBlocks {
  int64_t begin;
  int64_t end;
  KeyBlocks(const Block& queries, int64_t window)
      : begin(window > 0 ? std::max<int64_t>(0, queries.first - window + 1) / kBlock : 0),
        end((queries.end() - 1) / kBlock + 1) {}
};

/// Keys [key, key + num_keys) of a key block by query vectors [first, last) of a query block.
struct Run {
  int64_t key;
  int64_t num_keys;
  int64_t first;
  int64_t last;
  int64_t lane() const { return first * kQueryLanes; }
  int64_t num_lanes() const { return (last - first) * kQueryLanes; }
};

/// The visible part of a pair of blocks. Where all of it is visible it is one run.
struct Runs {
  std::array<Run, kBlockRuns> run;
  int count = 0;
  bool masked = false;  // some pair inside the runs is invisible

  const Run* begin() const { return run.data(); }
  const Run* end() const { return run.data() + count; }

  Runs(const Block& queries, const Block& keys, int64_t window) {
    const int64_t num_vectors = queries.vectors();
    const bool below = keys.end() - 1 <= queries.first;
    const bool inside = window == 0 || queries.end() - window <= keys.first;
    if (below && inside) {
      run[0] = {0, keys.count, 0, num_vectors};
      count = 1;
      return;
    }
    masked = true;
    for (int64_t key = 0; key < keys.count; key += kRunKeys) {
      const int64_t num_keys = std::min(kRunKeys, keys.count - key);
      const int64_t offset = keys.first + key - queries.first;  // of the run's first key
      const int64_t first = std::max<int64_t>(0, offset) / kQueryLanes;
      int64_t last = num_vectors;
      if (window > 0) {
        const int64_t last_query = offset + num_keys - 1 + window - 1;
        last = last_query < 0 ? 0 : std::min(last, last_query / kQueryLanes + 1);
      }
      if (first < last) run[static_cast<size_t>(count++)] = {key, num_keys, first, last};
    }
  }

  /// The keys that vector `v` meets: [begin, end) within the key block. Runs of one vector are
  /// neighbours.
  struct Keys {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Keys keys_of(int64_t v) const {
    Keys keys;
    for (const Run& r : *this) {
      if (v < r.first || v >= r.last) continue;
      if (keys.begin == keys.end) keys.begin = r.key;
      keys.end = r.key + r.num_keys;
    }
    return keys;
  }
};

}  // namespace trireme::cpu
