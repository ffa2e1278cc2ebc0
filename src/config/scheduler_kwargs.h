// `lr_scheduler_kwargs`: the names that schedulers take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"

namespace trireme::config {

struct KwargFacts {
  std::string_view name;
  std::string_view help;
  std::vector<Scheduler> schedulers;  // that take it
};
std::vector<KwargFacts> scheduler_kwargs();

/// Throws BadValue for an unknown name or a value that does not fit.
SchedulerKwargs parse_scheduler_kwargs(const Json& object);
/// Only what is there.
Json scheduler_kwargs_json(const SchedulerKwargs& kwargs);

/// What the schedule cannot be made of: names that its scheduler does not take, names that it
/// needs, values that do not go together.
std::vector<std::string> check_schedule(const RunConfig& config);

}  // namespace trireme::config
