#include "tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace trireme::tokenizer {
namespace {
constexpr size_t kNumEntries = 1 << 16;
}  // namespace

WordCache::WordCache() : entries_(kNumEntries) {}

std::span<const int32_t> WordCache::find(std::string_view word) const {
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  for (size_t slot = hash % kNumEntries; entries_[slot].num_ids != 0;
       slot = (slot + 1) % kNumEntries) {
    const Entry& entry = entries_[slot];
    if (entry.hash == hash &&
        word == std::string_view(words_).substr(entry.word, entry.word_size)) {
      return {ids_.data() + entry.ids, entry.num_ids};
    }
  }
  return {};
}

void WordCache::insert(std::string_view word, std::span<const int32_t> ids) {
  if (size_ == kNumEntries / 2) {
    std::fill(entries_.begin(), entries_.end(), Entry{});
    words_.clear();
    ids_.clear();
    size_ = 0;
  }
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  size_t slot = hash % kNumEntries;
  while (entries_[slot].num_ids != 0) slot = (slot + 1) % kNumEntries;
  entries_[slot] = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(ids_.size()),
                    static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++size_;
}

}  // namespace trireme::tokenizer
