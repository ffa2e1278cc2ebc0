// Layouts that are compared with the single process, each with a tiny model that it can cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/tiny.h"

namespace trireme::train {

/// A layout that is legal for its model, and what is trained.
struct LayoutCase {
  uint64_t seed = 0;  // of weights and samples; of a drawn one it decides everything
  TinyModel model;
  std::vector<int64_t> lengths;  // of the samples
  int64_t samples_per_step = 0;  // packs where samples are packed
  int ranks = 1;
  config::RunConfig config;  // of the layout
};

/// `seed` decides everything. At most `max_ranks` ranks (at least 1).
LayoutCase draw_layout(uint64_t seed, int max_ranks);

/// Every way to cut exactly `ranks` (at least 1) into data x tensor x pipeline ranks, always in the
/// same order: each under ZeRO stages 0 to 3 (0 alone where one data rank has all), under stages 1
/// to 3 also with state shared by each part of the data ranks that divides them, and under the last
/// of these once interleaved and once zero-bubble where there are stages; all in fp32, then in
/// bf16. Those of one precision train the same model on the same samples, tied in fp32, untied in
/// bf16.
std::vector<LayoutCase> every_layout(int ranks);

/// The same training by a single process, a step in one micro-batch.
config::RunConfig single_process_config(const LayoutCase& test);
/// The single processes of both are one.
bool train_alike(const LayoutCase& a, const LayoutCase& b);

/// "dp2 tp2 pp2 zero3 interleaved x2 ..." and "3 blocks, 6/2 heads, ...".
std::string layout_words(const LayoutCase& test);
std::string model_words(const LayoutCase& test);

}  // namespace trireme::train
