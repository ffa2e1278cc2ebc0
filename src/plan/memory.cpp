#include "plan/memory.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace trireme::plan {

namespace {

/// Places items one after the other, each at the lowest offset free among those it conflicts with.
Packing place_in_order(const std::vector<int64_t>& bytes, const Conflicts& conflicts,
                       const std::vector<size_t>& order) {
  Packing packing;
  packing.offsets.assign(bytes.size(), 0);
  std::vector<size_t> placed;  // by offset
  for (size_t item : order) {
    int64_t offset = 0;
    for (size_t other : placed) {
      if (!conflicts.test(item, other)) continue;
      const int64_t begin = packing.offsets[other];
      if (offset + bytes[item] <= begin) break;
      offset = std::max(offset, round_up(begin + bytes[other], kAlignment));
    }
    packing.offsets[item] = offset;
    packing.total = std::max(packing.total, round_up(offset + bytes[item], kAlignment));
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](int64_t value, size_t other) { return value < packing.offsets[other]; });
    placed.insert(at, item);
  }
  return packing;
}

}  // namespace

Packing pack(const std::vector<int64_t>& bytes, const Conflicts& conflicts) {
  check(bytes.size() == conflicts.items(), "{} sizes, {} items", bytes.size(), conflicts.items());
  std::vector<size_t> in_time;
  std::vector<int64_t> load(bytes.size(), 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    in_time.push_back(i);
    for (size_t j = 0; j < bytes.size(); ++j) load[i] += conflicts.test(i, j) ? bytes[j] : 0;
  }
  std::vector<size_t> by_size = in_time;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<size_t> by_load = by_size;
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](size_t a, size_t b) { return load[a] + bytes[a] > load[b] + bytes[b]; });

  Packing best = place_in_order(bytes, conflicts, by_size);
  for (const auto* order : {&by_load, &in_time}) {
    Packing packing = place_in_order(bytes, conflicts, *order);
    if (packing.total < best.total) best = std::move(packing);
  }
  return best;
}

}  // namespace trireme::plan
