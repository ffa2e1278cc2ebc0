// Feeds one rank: which micro-batch comes at a step, how large it is, and its descriptor.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "data/batch_builder.h"
#include "data/dataset.h"
#include "data/step_plan.h"

namespace trireme::data {

/// Any thread may call any member at any time; a thread that runs ahead may ask for later steps
/// than another. Nothing is allocated after construction.
class BatchSource {
 public:
  /// `plan` deals `packs`, which are of `dataset`; `rank` is among the ranks that share the data.
  /// `dataset` must outlive this.
  BatchSource(const Dataset& dataset, Packs packs, const StepPlan& plan, int64_t rank,
              int64_t pad_multiple);
  /// Each sample in a pack of its own.
  BatchSource(const Dataset& dataset, const StepPlan& plan, int64_t rank, int64_t pad_multiple)
      : BatchSource(dataset, Packs(dataset.size()), plan, rank, pad_multiple) {}

  const Packs& packs() const { return packs_; }
  const StepPlan& plan() const { return plan_; }
  /// The largest micro-batch of the run, of any rank.
  const ops::Extent& capacity() const { return capacity_; }
  /// Micro-batch 0..plan().at(step).num_micro_batches - 1 of this rank; maybe empty.
  ops::Extent extent(int64_t step, int64_t micro_batch);
  /// The same of any rank.
  ops::Extent extent(int64_t step, int64_t micro_batch, int64_t rank);
  /// Writes its descriptor to out: layout.total() entries, a capacity no smaller than this one's.
  ops::Extent fill(int64_t step, int64_t micro_batch, const ops::BatchLayout& layout, int32_t* out);
  /// What all ranks together process in a step, without padding.
  int64_t tokens_in_step(int64_t step) { return whole_step(step).tokens; }
  int64_t samples_in_step(int64_t step) { return whole_step(step).sequences; }

 private:
  const EpochOrder& order_of(int64_t epoch);
  ops::Extent whole_step(int64_t step);

  const Dataset& dataset_;
  const Packs packs_;
  const StepPlan plan_;
  const int64_t rank_;
  const int64_t pad_multiple_;
  const ops::Extent capacity_;

  std::mutex order_mutex_;
  std::array<EpochOrder, 2> orders_;  // an even and an odd epoch: one may run ahead of another

  std::mutex fill_mutex_;
  std::vector<int32_t> samples_;  // of the micro-batch being filled
  BatchBuilder builder_;
};

}  // namespace trireme::data
