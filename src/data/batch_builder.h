// Micro-batches as descriptors (ops/batch.h): their sizes, and their contents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/packing.h"
#include "data/step_plan.h"
#include "ops/batch.h"

namespace trireme::data {

/// Sizes of the micro-batch that holds these samples, its rows padded to a multiple.
ops::Extent extent_of(std::span<const int32_t> lengths, std::span<const int32_t> samples,
                      int64_t pad_multiple);
/// The same of all samples of the packs in `batch`.
ops::Extent extent_of(std::span<const int32_t> lengths, const Packs& packs,
                      std::span<const int32_t> batch, int64_t pad_multiple);

/// The largest of each size over every micro-batch that any rank meets in the run, of a plan that
/// deals these packs. The same on every rank. O(samples dealt), or less once no micro-batch can be
/// larger.
ops::Extent capacity_of(std::span<const int32_t> lengths, const Packs& packs, const StepPlan& plan,
                        int64_t pad_multiple);

/// Writes descriptors; keeps scratch, which grows to the largest micro-batch.
class BatchBuilder {
 public:
  explicit BatchBuilder(const ops::Extent& capacity);

  /// Writes the descriptor of `samples`, one sequence each, to out (layout.total() entries;
  /// those beyond the returned extent are left alone). Targets are shifted: entry t of a sequence
  /// is its label t + 1, the last is kNotTrained, and label 0 is never scored.
  ops::Extent build(const Dataset& dataset, std::span<const int32_t> samples,
                    const ops::BatchLayout& layout, int64_t pad_multiple, int32_t* out);

 private:
  void sort_tokens(std::span<const int32_t> ids, int32_t* order);
  std::vector<int32_t> scratch_;  // (tokens)
};

}  // namespace trireme::data
