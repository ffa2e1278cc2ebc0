// The most bytes of transient buffers that can live at one moment of any run of a program: streams
// run side by side, so that is more than the lives that overlap in the order of the schedule.
//
// A moment is a set of begun and of done entries that holds, with each, all it comes after. A
// buffer lives when the entry that acquires it has begun and the one that releases it is not done.
// The best moment is a closure of maximum weight: the total of all gains less a minimum cut (Picard
// 1976), found with Dinic's algorithm.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "plan/placement.h"

namespace trireme::testing {

class FlowNetwork {
 public:
  explicit FlowNetwork(size_t nodes) : edges_of_(nodes), level_(nodes), next_(nodes) {}

  void connect(size_t from, size_t to, int64_t capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  int64_t max_flow(size_t source, size_t sink) {
    int64_t total = 0;
    while (find_levels(source, sink)) {
      std::fill(next_.begin(), next_.end(), 0);
      while (const int64_t pushed = push(source, sink, INT64_MAX)) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    size_t to;
    int64_t left;
  };

  bool find_levels(size_t source, size_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    level_[source] = 0;
    std::vector<size_t> reached = {source};
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const size_t e : edges_of_[reached[i]]) {
        const Edge& edge = edges_[e];
        if (edge.left == 0 || level_[edge.to] >= 0) continue;
        level_[edge.to] = level_[reached[i]] + 1;
        reached.push_back(edge.to);
      }
    }
    return level_[sink] >= 0;
  }

  int64_t push(size_t node, size_t sink, int64_t most) {
    if (node == sink) return most;
    for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
      const size_t e = edges_of_[node][i];
      const size_t to = edges_[e].to;
      if (edges_[e].left == 0 || level_[to] != level_[node] + 1) continue;
      const int64_t pushed = push(to, sink, std::min(most, edges_[e].left));
      if (pushed == 0) continue;
      edges_[e].left -= pushed;
      edges_[e ^ 1].left += pushed;
      return pushed;
    }
    return 0;
  }

  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

inline int64_t most_live_bytes(const plan::Program& program, plan::Space space) {
  const auto& schedule = program.schedule;
  const auto begun = [](int32_t entry) { return 2 * static_cast<size_t>(entry); };
  const auto done = [](int32_t entry) { return 2 * static_cast<size_t>(entry) + 1; };
  std::vector<int64_t> gain(2 * schedule.size(), 0);
  const auto lives = plan::generations(program);
  for (size_t b = 0; b < lives.size(); ++b) {
    if (program.buffers[b].space != space || program.buffers[b].persistent) continue;
    for (const plan::Generation& life : lives[b]) {
      gain[begun(life.acquire)] += program.buffers[b].bytes;
      gain[done(life.release)] -= program.buffers[b].bytes;
    }
  }
  const size_t source = gain.size();
  const size_t sink = source + 1;
  FlowNetwork network(gain.size() + 2);
  int64_t gains = 0;
  for (size_t node = 0; node < gain.size(); ++node) {
    gains += std::max<int64_t>(0, gain[node]);
    if (gain[node] > 0) network.connect(source, node, gain[node]);
    if (gain[node] < 0) network.connect(node, sink, -gain[node]);
  }
  std::array<int32_t, device::kNumStreams> last;
  last.fill(-1);
  for (size_t i = 0; i < schedule.size(); ++i) {
    const auto entry = static_cast<int32_t>(i);
    network.connect(done(entry), begun(entry), INT64_MAX / 4);
    int32_t& before = last[static_cast<size_t>(schedule[i].stream)];
    if (before >= 0) network.connect(begun(entry), done(before), INT64_MAX / 4);
    before = entry;
    for (const int32_t wait : schedule[i].waits) {
      network.connect(begun(entry), done(wait), INT64_MAX / 4);
    }
  }
  return gains - network.max_flow(source, sink);
}

}  // namespace trireme::testing
