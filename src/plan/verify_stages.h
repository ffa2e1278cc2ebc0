// The stages of a pipeline against each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace trireme::plan {

/// Runs the programs of all stages of one pipeline against each other (find_world_fault); `stages`
/// are plans of one data and one tensor rank, in stage order. Ranks beside them are alike: they
/// stand for all. The first fault, naming stages as ranks.
std::optional<std::string> find_stage_fault(const std::vector<Plan>& stages);

}  // namespace trireme::plan
