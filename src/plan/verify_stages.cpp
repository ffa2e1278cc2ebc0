#include "plan/verify_stages.h"

#include <numeric>

#include "base/error.h"
#include "plan/verify.h"

namespace trireme::plan {

namespace {

/// Stages that meet on an axis; only the pipeline's own axes reach beyond one.
std::vector<int> stages_met(const std::vector<Plan>& stages, int stage, GroupAxis axis) {
  const int count = static_cast<int>(stages.size());
  const int next = (stage + 1) % count;
  const int previous = (stage + count - 1) % count;
  switch (axis) {
    case GroupAxis::world: {
      std::vector<int> all(stages.size());
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    case GroupAxis::tied_ends:
      return {0, count - 1};
    case GroupAxis::to_next:
      return {stage, next};
    case GroupAxis::from_previous:
      return {previous, stage};
    case GroupAxis::to_previous:
      return {stage, previous};
    case GroupAxis::from_next:
      return {next, stage};
    default:
      return {stage};
  }
}

}  // namespace

std::optional<std::string> find_stage_fault(const std::vector<Plan>& stages) {
  const size_t num_programs = stages.front().programs().size();
  for (size_t p = 0; p < num_programs; ++p) {
    std::vector<const Program*> programs;
    for (const Plan& plan : stages) {
      check(plan.programs().size() == num_programs, "stages with different programs");
      programs.push_back(plan.programs()[p]);
    }
    const auto fault = find_world_fault(programs, [&](int stage, GroupAxis axis) {
      return stages_met(stages, stage, axis);
    });
    if (fault) return fmt::format("{}: {}", programs.front()->name, *fault);
  }
  return std::nullopt;
}

}  // namespace trireme::plan
