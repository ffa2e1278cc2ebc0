// What a run says of itself before its first step.
#pragma once

#include <string>

#include "config/run_config.h"
#include "mesh/layout.h"
#include "metrics/record.h"
#include "plan/plan.h"
#include "train/run_data.h"

namespace trireme::train {

/// Into how many packs or blocks a set was packed, and how full they are.
std::string packing_words(const config::RunConfig& config, const data::Dataset& samples,
                          const data::Packs& packs);

/// All that follows from the configuration, the data and the plan. What the device says of itself,
/// where a resumed run stands and the program's hash are the caller's to add.
metrics::RunFacts run_facts(const config::RunConfig& config, const RunData& data,
                            const plan::Plan& plan, const mesh::Layout& layout);

}  // namespace trireme::train
