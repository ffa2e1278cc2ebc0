// Lays an ordered list of nodes out as a phase: storages, frame, instructions and their waits.
#pragma once

#include <string>
#include <vector>

#include "plan/phase.h"

namespace trireme::plan {

/// A value that lives in a buffer which the schedule binds.
struct Placing {
  int value = -1;  // -1: ignored
  Bound bound{};
  int64_t offset = 0;  // bytes
};

struct PhaseParts {
  const model::UnitGraph* graph = nullptr;
  const std::vector<model::Value>* values = nullptr;  // of the graph or of its adjoint
  std::vector<model::Node> nodes;                     // in the order in which they run
  std::vector<bool> recomputed = {};                  // per node; missing: not
  std::vector<Placing> bound = {};                    // all other values live in the frame
};

Phase build_phase(const PhaseRequest& request, PhaseParts parts, std::string name);

/// How the elements of a value are stored.
DType dtype_of(const model::Value& value, DType compute);

}  // namespace trireme::plan
