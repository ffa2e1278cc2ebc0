// How bodies use their threads: static ranges of independent work, or items taken in turn. A body
// must give each range and item the same bits whoever computes it.
//
// Teams have always num_threads members: libgomp ends the surplus threads of a smaller team, and
// starting them again costs more than their idling.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/math.h"

namespace trireme::cpu {

/// Below this many elements of work a team costs more than it saves.
inline constexpr int64_t kSerialWork = 16384;

/// body(begin, end) over disjoint ranges of [0, count), all but the last a multiple of `grain`.
/// `work` = elements touched in all.
template <typename Body>
void parallel_ranges(int num_threads, int64_t count, int64_t grain, int64_t work,
                     const Body& body) {
  if (count <= 0) return;
  const int64_t grains = ceil_div(count, grain);
  if (num_threads == 1 || grains == 1 || work <= kSerialWork) {
    body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    const int64_t size = omp_get_num_threads();
    const int64_t rank = omp_get_thread_num();
    const int64_t begin = grains * rank / size * grain;
    const int64_t end = std::min(count, grains * (rank + 1) / size * grain);
    if (begin < end) body(begin, end);
  }
}

/// body(item, thread) for every item of [0, count), in any order, by threads 0..num_threads-1.
template <typename Body>
void parallel_items(int num_threads, int64_t count, const Body& body) {
  if (count <= 0) return;
  if (num_threads == 1 || count == 1) {
    for (int64_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(num_threads)
  {
    const int thread = omp_get_thread_num();
    for (int64_t item = next++; item < count; item = next++) body(item, thread);
  }
}

}  // namespace trireme::cpu
