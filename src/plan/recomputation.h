// Which forward values backward keeps, and how it rebuilds the others.
#pragma once

#include <vector>

#include "config/run_config.h"
#include "model/adjoint.h"
#include "model/graph.h"

namespace trireme::plan {

/// Recomputation level of every block, from the front. ConfigError when the spans name more blocks
/// than there are.
std::vector<model::Recompute> recompute_levels(const config::RunConfig& config, int64_t num_blocks);

/// A list of backward nodes made whole: each forward node that rebuilds what was dropped stands
/// just before its first use.
struct Rebuilt {
  std::vector<model::Node> nodes;
  std::vector<bool> recomputed;  // per node
  std::vector<int> saved;        // values to keep from forward, ascending
  std::vector<int> reused;       // of `available`: those that are read, ascending
  std::vector<int> rebuilt;      // values that recomputed nodes write, gathered ones left out
  bool keeps_input = false;
};

/// `available`: forward values that somebody else hands over.
Rebuilt rebuild(const model::UnitGraph& graph, const std::vector<model::Node>& backward,
                model::Recompute level, const std::vector<int>& available = {});

/// Backward in two: what the units before wait for, and the gradients that only the optimizer
/// needs.
struct SplitBackward {
  std::vector<model::Value> values;  // the adjoint's, then copies
  std::vector<model::Node> input;    // with copies of gradients that are overwritten later
  std::vector<model::Node> weight;
  std::vector<int> handed_over;  // gradients that `weight` reads from `input`, ascending
};
SplitBackward split(const model::Adjoint& adjoint, int num_forward_values);

}  // namespace trireme::plan
