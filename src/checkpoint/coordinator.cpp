#include "checkpoint/coordinator.h"

namespace trireme::checkpoint {

void agree(Coordinator& ranks, std::string_view task, std::string_view problem) {
  const std::vector<std::string> problems = ranks.exchange(problem);
  size_t first = problems.size();
  int others = -1;
  for (size_t rank = problems.size(); rank-- > 0;) {
    if (problems[rank].empty()) continue;
    first = rank;
    ++others;
  }
  if (first == problems.size()) return;
  throw AgreedError(
      fmt::format("{}: rank {}: {}{}", task, first, problems[first],
                  others > 0 ? fmt::format(" (and {} more ranks failed)", others) : ""));
}

}  // namespace trireme::checkpoint
