#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>

namespace trireme::tokenizer {

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_ids, std::span<const BpeMerge> merges)
    : byte_ids_(byte_ids),
      slots_(std::bit_ceil(2 * merges.size() + 2)),
      filter_(kFilterBits / 64),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = key_of(merges[rank].left, merges[rank].right);
    const uint64_t hash = hash_of(key);
    const uint64_t bit = hash & (kFilterBits - 1);
    filter_[bit / 64] |= uint64_t{1} << (bit % 64);
    size_t slot = hash >> shift_;
    while (slots_[slot].found.rank >= 0 && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, {static_cast<int32_t>(rank), merges[rank].result}};
  }
}

void BpeMerger::offer(int32_t at) {
  Symbol& symbol = symbols_[static_cast<size_t>(at)];
  symbol.result = -1;
  if (symbol.next < 0) return;
  const auto found = merges_->find(symbol.id, symbols_[static_cast<size_t>(symbol.next)].id);
  if (found.rank < 0) return;
  symbol.result = found.result;
  heap_.push_back({found.rank, at, found.result});
}

void BpeMerger::merge(std::string_view word, std::vector<int32_t>* ids) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto size = static_cast<int32_t>(word.size());
  symbols_.resize(word.size());
  heap_.clear();
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(word[static_cast<size_t>(i)]);
    symbols_[static_cast<size_t>(i)] = {merges_->byte_id(byte), -1, i - 1,
                                        i + 1 < size ? i + 1 : -1};
  }
  for (int32_t i = 0; i < size; ++i) offer(i);
  std::make_heap(heap_.begin(), heap_.end(), later);
  const auto offer_again = [&](int32_t at) {
    const size_t before = heap_.size();
    offer(at);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<size_t>(best.at)];
    // Stale: one of the two has since been merged with another neighbour.
    if (left.id < 0 || left.result != best.result) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = best.at;
    if (left.previous >= 0) offer_again(left.previous);
    offer_again(best.at);
  }
  for (int32_t i = 0; i >= 0 && i < size; i = symbols_[static_cast<size_t>(i)].next) {
    ids->push_back(symbols_[static_cast<size_t>(i)].id);
  }
}

}  // namespace trireme::tokenizer
