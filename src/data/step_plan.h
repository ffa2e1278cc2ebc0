// Which samples each rank sees at each step: pure arithmetic, the same on every rank, and the
// numbers and order of Hugging Face Trainer.
//
// An epoch deals its samples in batches of `batch_size`; batch j goes to rank j mod num_ranks as
// its micro-batch j / num_ranks. Every rank has the same number of micro-batches; where the samples
// run out the last may be short or empty. A step takes `accumulation_steps` micro-batches of one
// epoch, the last step of an epoch those that are left. What is called a sample here is a pack of
// them (packing.h), of one each where they are not packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

struct StepPlanOptions {
  int64_t num_samples = 0;
  int64_t batch_size = 1;  // of one rank and micro-batch
  int64_t num_ranks = 1;   // that share the data
  int64_t accumulation_steps = 1;
  double num_epochs = 1;   // may be fractional
  int64_t max_steps = -1;  // > 0: exactly as many steps, over as many epochs as that takes
  bool shuffle = false;    // else file order
  int64_t seed = 0;        // the data_seed of the run, or its seed
  /// With several ranks: fill the last batches up with the first samples of the epoch, which are
  /// then seen twice, as Hugging Face does. Else every sample is dealt exactly once.
  bool even_batches = false;
};

/// Evaluation: one epoch in file order, one micro-batch a step, every sample once.
StepPlanOptions evaluation_plan(int64_t num_samples, int64_t batch_size, int64_t num_ranks);

class StepPlan {
 public:
  /// ConfigError where the epochs are more updates than config::kMaxUpdates.
  explicit StepPlan(const StepPlanOptions& options);

  struct Step {
    int64_t epoch = 0;
    int64_t first_micro_batch = 0;  // within the epoch
    int64_t num_micro_batches = 0;  // the same on every rank, at least 1
  };

  const StepPlanOptions& options() const { return options_; }
  int64_t micro_batches_per_epoch() const { return micro_batches_; }
  int64_t steps_per_epoch() const { return steps_; }
  int64_t total_steps() const { return total_steps_; }
  /// Epochs that are begun.
  int64_t num_epochs() const;
  /// `step` counts from 0 over the run.
  Step at(int64_t step) const;
  /// The `epoch` that Hugging Face logs once `step` is done: epochs seen, with a fraction.
  double epoch_after(int64_t step) const;

 private:
  StepPlanOptions options_;
  int64_t micro_batches_ = 0;
  int64_t steps_ = 0;
  int64_t total_steps_ = 0;
};

/// The order of one epoch at a time. Allocates when made, never later.
class EpochOrder {
 public:
  /// Starts at epoch 0.
  explicit EpochOrder(const StepPlanOptions& options);
  int64_t epoch() const { return epoch_; }
  /// O(num_samples) when shuffling and `epoch` is another one.
  void move_to(int64_t epoch);
  /// The samples of a rank's micro-batch, maybe none; valid until move_to().
  std::span<const int32_t> batch(int64_t rank, int64_t micro_batch) const {
    return slice((micro_batch * options_.num_ranks + rank) * options_.batch_size,
                 options_.batch_size);
  }
  /// The samples of all ranks in `count` micro-batches from `first`.
  std::span<const int32_t> batches(int64_t first, int64_t count) const {
    const int64_t row = options_.num_ranks * options_.batch_size;
    return slice(first * row, count * row);
  }

 private:
  std::span<const int32_t> slice(int64_t begin, int64_t size) const;
  void fill();

  StepPlanOptions options_;
  int64_t epoch_ = 0;
  std::vector<int32_t> order_;  // (samples), then those dealt again
};

/// The permutation that torch.randperm(out.size()) gives on the CPU for a generator with this
/// seed. (Bit for bit below 2^32 / 20 elements; above, torch draws 64 bits an element, and so does
/// this.)
void torch_permutation(uint64_t seed, std::span<int32_t> out);

}  // namespace trireme::data
