// Byte-pair merging with the ids and in the order of Hugging Face `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// Tokens `left` and `right` side by side become `result`; earlier merges go first.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

/// Immutable; shared by threads.
class BpeMerges {
 public:
  struct Found {
    int32_t rank = -1;  // -1: the pair does not merge
    int32_t result = -1;
  };

  /// `byte_ids`: the token of each byte. `merges` in rank order; of equal pairs the last counts.
  BpeMerges(const std::array<int32_t, 256>& byte_ids, std::span<const BpeMerge> merges);

  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }
  Found find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    const uint64_t hash = hash_of(key);
    // Most pairs do not merge: a bit that stays in the cache tells without touching the table.
    const uint64_t bit = hash & (kFilterBits - 1);
    if ((filter_[bit / 64] >> (bit % 64) & 1) == 0) return {};
    for (size_t slot = hash >> shift_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].found;
      if (slots_[slot].found.rank < 0) return {};
    }
  }

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Found found;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash_of(uint64_t key) {
    const uint64_t product = key * 0x9e3779b97f4a7c15u;
    return product ^ product >> 32;
  }

  static constexpr uint64_t kFilterBits = 1 << 21;
  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;       // open addressing, a power of two, at most half full
  std::vector<uint64_t> filter_;  // (kFilterBits / 64): set for the hash of every pair
  size_t mask_;
  int shift_;  // to the upper bits of a hash
};

/// Scratch of one thread: merges one piece of text after another.
class BpeMerger {
 public:
  explicit BpeMerger(const BpeMerges& merges) : merges_(&merges) {}
  /// Appends the tokens of `word` (bytes) to *ids.
  void merge(std::string_view word, std::vector<int32_t>* ids);

 private:
  struct Symbol {
    int32_t id;      // -1: swallowed by its left neighbour
    int32_t result;  // what it and its right neighbour merge into; -1: nothing
    int32_t previous;
    int32_t next;  // -1: none
  };
  struct Candidate {
    int32_t rank;
    int32_t at;
    int32_t result;
  };
  void offer(int32_t at);

  const BpeMerges* merges_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace trireme::tokenizer
