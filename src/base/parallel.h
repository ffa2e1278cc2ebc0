// Splits a long loop of a host thread over the processors that this process may use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace trireme {

/// body(begin, end) over disjoint ranges of [0, count), at least `grain` long but the last; returns
/// when all are done. Threads are made for the call: it pays from milliseconds of work on. `body`
/// must not throw.
template <typename Body>
void split_over_threads(int64_t count, int64_t grain, const Body& body) {
  const int64_t processors = std::max(1u, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, processors);
  std::vector<std::jthread> threads;
  for (int64_t part = 1; part < parts; ++part) {
    threads.emplace_back([&, part] { body(count * part / parts, count * (part + 1) / parts); });
  }
  body(0, count / parts);
}

}  // namespace trireme
