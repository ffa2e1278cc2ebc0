#include "plan/stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trireme::plan {

namespace {

/// best(cost so far, cost of a range) is minimised over all cuts; costs above `most` are not
/// allowed. Returns the starts of the ranges.
template <typename Join>
std::vector<int> cut(const std::vector<double>& prefix, int stages, double most, Join join,
                     double* value) {
  const int units = static_cast<int>(prefix.size()) - 1;
  const double never = std::numeric_limits<double>::infinity();
  std::vector<double> best(prefix.size(), never);  // of the first u units in the stages so far
  best[0] = 0;
  std::vector<std::vector<int>> from(static_cast<size_t>(stages), std::vector<int>(prefix.size()));
  for (size_t stage = 0; stage < from.size(); ++stage) {
    std::vector<double> next(prefix.size(), never);
    for (int end = 1; end <= units; ++end) {
      const auto e = static_cast<size_t>(end);
      for (int begin = end - 1; begin >= 0; --begin) {
        const auto b = static_cast<size_t>(begin);
        const double cost = prefix[e] - prefix[b];
        if (cost > most) break;
        const double joined = join(best[b], cost);
        if (joined < next[e]) {
          next[e] = joined;
          from[stage][e] = begin;
        }
      }
    }
    best = std::move(next);
  }
  *value = best.back();
  std::vector<int> starts(from.size());
  int end = units;
  for (size_t stage = from.size(); stage-- > 0;) {
    end = from[stage][static_cast<size_t>(end)];
    starts[stage] = end;
  }
  return starts;
}

}  // namespace

std::vector<UnitRange> balanced_stages(const std::vector<double>& costs, int64_t virtual_stages) {
  const auto units = static_cast<int64_t>(costs.size());
  if (virtual_stages > units) {
    throw ConfigError("pipeline_parallel_size", std::to_string(virtual_stages),
                      fmt::format("the model has {} units (embedding, blocks, head), and every "
                                  "virtual stage needs one: use fewer stages",
                                  units));
  }
  std::vector<double> prefix = {0};
  for (const double cost : costs) prefix.push_back(prefix.back() + cost);
  double most = 0;
  const int stages = static_cast<int>(virtual_stages);
  cut(
      prefix, stages, std::numeric_limits<double>::infinity(),
      [](double so_far, double cost) { return std::max(so_far, cost); }, &most);
  double squares = 0;
  const std::vector<int> starts = cut(
      prefix, stages, most, [](double so_far, double cost) { return so_far + cost * cost; },
      &squares);
  std::vector<UnitRange> ranges;
  for (size_t i = 0; i < starts.size(); ++i) {
    ranges.push_back({starts[i], i + 1 < starts.size() ? starts[i + 1] : static_cast<int>(units)});
  }
  return ranges;
}

std::vector<UnitRange> stages_by_hand(const std::vector<int64_t>& blocks, int64_t num_blocks,
                                      int64_t virtual_stages) {
  const auto refuse = [&](const std::string& remedy) {
    throw ConfigError("pipeline_layers", fmt::format("{}", fmt::join(blocks, ",")), remedy);
  };
  if (static_cast<int64_t>(blocks.size()) != virtual_stages) {
    refuse(fmt::format("name the blocks of all {} virtual stages", virtual_stages));
  }
  const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  if (sum != num_blocks)
    refuse(fmt::format("they must add up to the model's {} blocks", num_blocks));
  std::vector<UnitRange> ranges;
  int64_t at = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t size = blocks[i] + (i == 0 ? 1 : 0) + (i + 1 == blocks.size() ? 1 : 0);
    if (blocks[i] < 0 || size == 0) refuse("only the first and the last stage may have no block");
    ranges.push_back({static_cast<int>(at), static_cast<int>(at + size)});
    at += size;
  }
  return ranges;
}

}  // namespace trireme::plan
