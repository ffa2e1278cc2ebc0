// Which algorithms a run's operations take, where a backend has several.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/coordinator.h"
#include "device/backend.h"
#include "ops/batch.h"
#include "train/session.h"

namespace trireme::train {

struct AlgorithmRequest {
  std::vector<ops::Extent> extents;  // of micro-batches to measure
  std::string saved = {};            // what a run had chosen that goes on here; "": nothing
  bool measure = true;               // the same on every rank
};

/// Collective. Of the ranks that run the same products (those of one stage) the first measures,
/// what `saved` does not tell. All ranks take the choices of all, of the first rank before others,
/// and of `saved` what nobody met. Overwrites memory: before Session::load. Returns the choices,
/// the same on every rank, as the next `saved`.
std::string choose_algorithms(Session& session, device::Backend& backend,
                              checkpoint::Coordinator& ranks, const AlgorithmRequest& request);

}  // namespace trireme::train
