// Layouts of tiny models against the single process: the proof that a layout changes nothing but
// where the work is done.
#pragma once

#include <functional>

#include "train/layout_cases.h"
#include "train/trial.h"

namespace trireme::train {

/// Runs `body(rank, backend)` on as many ranks, each on a thread of its own, and rethrows the first
/// error.
using RunRanks =
    std::function<void(int ranks, const std::function<void(int, device::Backend&)>& body)>;

/// How far one training lies from another. Relative; infinite where something is missing or not
/// finite.
struct Differences {
  double gradients = 0;  // the largest of any parameter, first step
  double norm = 0;       // of any step
  double loss = 0;
  double weights = 0;  // at the end

  /// A layout and the single process, which bf16 alone takes so far from fp32.
  bool agree(const Differences& rounding) const;
};

/// The training that layouts are compared with.
struct SingleProcess {
  TrialResult result;
  Differences rounding;  // between it and the same training in fp32
};
/// Of all cases that train_alike.
SingleProcess train_alone(const LayoutCase& test, const RunRanks& run_ranks);

/// Between the layout's training and the single process's.
Differences compare(const LayoutCase& test, const SingleProcess& alone, const RunRanks& run_ranks);

}  // namespace trireme::train
