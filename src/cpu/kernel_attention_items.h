// Attention's work items: pieces of (sequence, head) that threads take in turn.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "cpu/kernel_attention_blocks.h"

namespace trireme::cpu {

/// Items over sequences of unequal lengths: each sequence has `heads` heads of
/// ceil(blocks / blocks_per_item) items. `prefix` (sequences + 1) is filled by the constructor.
class AttentionItems {
 public:
  struct Item {
    int64_t sequence;
    int64_t head;
    int64_t first_block;  // of the sequence
    int64_t num_blocks;
  };

  AttentionItems(const int32_t* cu_seqlens, int64_t num_sequences, int64_t heads,
                 int64_t blocks_per_item, int64_t* prefix)
      : cu_seqlens_(cu_seqlens),
        num_sequences_(num_sequences),
        heads_(heads),
        blocks_per_item_(blocks_per_item),
        prefix_(prefix) {
    prefix_[0] = 0;
    for (int64_t s = 0; s < num_sequences; ++s) prefix_[s + 1] = prefix_[s] + pieces(s) * heads;
  }

  /// Bytes of `prefix`, in whole cache lines.
  static int64_t prefix_bytes(int64_t num_sequences) {
    return round_up((num_sequences + 1) * static_cast<int64_t>(sizeof(int64_t)), 64);
  }

  int64_t count() const { return prefix_[num_sequences_]; }

  /// Later blocks, which see more keys, come first.
  Item at(int64_t item) const {
    const int64_t* after = std::upper_bound(prefix_, prefix_ + num_sequences_ + 1, item);
    const int64_t sequence = after - prefix_ - 1;
    const int64_t local = item - prefix_[sequence];
    const int64_t n = pieces(sequence);
    const int64_t first = (n - 1 - local % n) * blocks_per_item_;
    return {sequence, local / n, first, std::min(blocks_per_item_, blocks(sequence) - first)};
  }

  int64_t length(int64_t sequence) const {
    return cu_seqlens_[sequence + 1] - cu_seqlens_[sequence];
  }

 private:
  int64_t blocks(int64_t sequence) const { return cpu::num_blocks(length(sequence)); }
  int64_t pieces(int64_t sequence) const {
    return (blocks(sequence) + blocks_per_item_ - 1) / blocks_per_item_;
  }

  const int32_t* cu_seqlens_;
  int64_t num_sequences_;
  int64_t heads_;
  int64_t blocks_per_item_;
  int64_t* prefix_;
};

}  // namespace trireme::cpu
