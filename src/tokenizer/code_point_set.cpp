#include "tokenizer/code_point_set.h"

#include <algorithm>

namespace trireme::tokenizer {

CodePointSet::CodePointSet(std::initializer_list<CodeRange> ranges) {
  for (const CodeRange& range : ranges) add(range.first, range.last);
}

void CodePointSet::add(uint32_t first, uint32_t last) {
  // The first range that ends at or after `first - 1` is the first that may join the new one.
  auto begin = std::lower_bound(
      ranges_.begin(), ranges_.end(), first,
      [](const CodeRange& range, uint32_t value) { return range.last + 1 < value; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {first, last});
}

void CodePointSet::add(const CodePointSet& other) {
  for (const CodeRange& range : other.ranges_) add(range.first, range.last);
}

bool CodePointSet::contains(uint32_t code_point) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                       [](uint32_t value, const CodeRange& range) { return value < range.first; });
  return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  uint32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.first > next) result.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kNumCodePoints) result.ranges_.push_back({next, kNumCodePoints - 1});
  return result;
}

std::optional<CodePointSet> property_set(std::string_view name) {
  uint32_t wanted = 0;  // bit = category
  for (size_t i = 0; i < std::size(kCategoryNames); ++i) {
    const std::string_view category = kCategoryNames[i];
    if (category == name || (name.size() == 1 && category[0] == name[0])) wanted |= 1u << i;
  }
  if (wanted == 0) return std::nullopt;
  CodePointSet result;
  uint32_t first = 0;
  for (const uint32_t run : category_runs()) {
    const uint32_t end = first + (run >> 5);
    if (wanted >> (run & 31) & 1) result.add(first, end - 1);
    first = end;
  }
  return result;
}

CodePointSet white_space() {
  return {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
          {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
}

}  // namespace trireme::tokenizer
