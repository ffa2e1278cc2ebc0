// What of the model a pipeline stage runs.
#pragma once

#include <vector>

#include "config/run_config.h"
#include "model/graph.h"
#include "plan/axes.h"
#include "plan/schedule.h"
#include "plan/stages.h"
#include "plan/work_costs.h"

namespace trireme::plan {

struct Pipeline {
  PipelineSchedule kind = PipelineSchedule::one_f_one_b;
  int stages = 1;
  int stage = 0;
  std::vector<WorkCosts> costs;   // of each unit
  std::vector<UnitRange> ranges;  // of every virtual stage; chunk c of stage p is c * stages + p
  std::vector<bool> gradient_in;  // per unit: it hands a gradient to the unit before

  int chunks() const { return static_cast<int>(ranges.size()) / stages; }
  int virtual_stage(int chunk) const { return chunk * stages + stage; }
  const UnitRange& units(int chunk) const {
    return ranges[static_cast<size_t>(virtual_stage(chunk))];
  }
  bool first(int chunk) const { return virtual_stage(chunk) == 0; }
  bool last(int chunk) const { return virtual_stage(chunk) + 1 == static_cast<int>(ranges.size()); }
  /// This rank's units, ascending.
  std::vector<int> own_units() const;
  /// The work of this rank on so many micro-batches.
  std::vector<Slot> work(int micro_batches) const;
};

/// ConfigError when the settings do not fit the model.
Pipeline make_pipeline(const config::RunConfig& config, const model::ModelGraph& model,
                       const Mesh& mesh, const ops::Extent& capacity);

}  // namespace trireme::plan
