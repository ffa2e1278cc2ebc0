// Remembers the tokens of frequent words, for one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

class WordCache {
 public:
  WordCache();
  /// Longer words are not remembered.
  static constexpr size_t kLongestWord = 48;
  /// The tokens of a word; empty where it is not known. Valid until the next insert().
  std::span<const int32_t> find(std::string_view word) const;
  /// `word` must be unknown, of 1..kLongestWord bytes, and have at least one token. Forgets
  /// everything when full.
  void insert(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t word = 0;  // offset in words_
    uint32_t ids = 0;   // offset in ids_
    uint16_t word_size = 0;
    uint16_t num_ids = 0;  // 0: free
  };
  std::vector<Entry> entries_;  // open addressing, a power of two, at most half full
  size_t size_ = 0;
  std::string words_;
  std::vector<int32_t> ids_;
};

}  // namespace trireme::tokenizer
