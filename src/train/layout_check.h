// Random layouts of tiny models against the single process: the proof that a layout changes
// nothing but where the work is done.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/tiny.h"
#include "train/trial.h"

namespace trireme::train {

/// A layout that is legal for its model, and what is trained.
struct DrawnLayout {
  uint64_t seed = 0;
  TinyModel model;
  std::vector<int64_t> lengths;  // of the samples
  int64_t samples_per_step = 0;
  int ranks = 1;
  config::RunConfig config;  // of the layout
};

/// `seed` decides everything. At most `max_ranks` ranks (at least 1).
DrawnLayout draw_layout(uint64_t seed, int max_ranks);

/// "dp2 tp2 pp2 zero3 interleaved x2 ..." and "3 blocks, 6/2 heads, ...".
std::string layout_words(const DrawnLayout& drawn);
std::string model_words(const DrawnLayout& drawn);

/// Runs `body(rank, backend)` on as many ranks, each on a thread of its own, and rethrows the first
/// error.
using RunRanks =
    std::function<void(int ranks, const std::function<void(int, device::Backend&)>& body)>;

/// How far the layout's training lies from the single process's. Relative; infinite where something
/// is missing or not finite.
struct Differences {
  double gradients = 0;  // the largest of any parameter, first step
  double norm = 0;       // of any step
  double loss = 0;
  double weights = 0;  // at the end

  bool agree() const;
};
Differences compare_with_single_process(const DrawnLayout& drawn, const RunRanks& run_ranks);

}  // namespace trireme::train
