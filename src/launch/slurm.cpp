#include "launch/slurm.h"

#include <charconv>

namespace trireme::launch {
namespace {

/// A whole number of at least `least` that is all of `text`.
std::optional<int> whole(std::string_view text, int least) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fits = code == std::errc() && end == text.data() + text.size() && value >= least;
  return fits ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t close = list.find(']', at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view numbers = list.substr(at + 1, close - at - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    if (!whole(first, 0)) return std::nullopt;
    host += first;
    at = close + 1;
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

std::optional<int> tasks_of_node(std::string_view list, int node) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const size_t times = item.find("(x");
    const auto tasks = whole(item.substr(0, times), 1);
    std::optional<int> nodes = 1;
    if (times != std::string_view::npos) {
      nodes = item.ends_with(')') ? whole(item.substr(times + 2, item.size() - times - 3), 1)
                                  : std::nullopt;
    }
    if (!tasks || !nodes) return std::nullopt;
    if (node < *nodes) return tasks;
    node -= *nodes;
  }
  return std::nullopt;
}

int port_of_step(int64_t job, int64_t step) {
  // Neighbouring jobs, and the first steps of one job, get different ones.
  return static_cast<int>(61000 + (job * 131 + step) % 4536);
}

}  // namespace trireme::launch
