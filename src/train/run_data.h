// What a run is fed: datasets, the order of their samples, the sizes of their micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "data/batch_source.h"
#include "data/dataset.h"
#include "model/model_config.h"
#include "ops/batch.h"

namespace trireme::train {

/// Makes room for `other` as well.
void grow(ops::Extent& capacity, const ops::Extent& other);

/// What a run's files hold.
struct RunRows {
  data::Dataset training;
  std::unique_ptr<data::Dataset> evaluation;  // null: nothing is evaluated
};
/// Reads and checks every row.
RunRows read_rows(const config::RunConfig& config, const model::ModelConfig& model);

/// How a set is dealt when it is packed as the configuration says, or not packed.
data::Packs packs_of(const config::RunConfig& config, const data::Dataset& samples, bool packed);

/// One rank's view of the data.
class RunData {
 public:
  /// `token_multiple`: rows of a micro-batch are padded to it.
  RunData(const config::RunConfig& config, RunRows rows, int64_t data_ranks, int64_t data_rank,
          int64_t token_multiple);

  const data::Dataset& training() const { return training_; }
  const data::Packs& packs() const { return train_->packs(); }
  const data::StepPlan& plan() const { return train_->plan(); }
  int64_t total_steps() const { return plan().total_steps(); }
  /// The largest micro-batch of training and evaluation, of any rank.
  ops::Extent capacity() const;
  /// Distinct numbers of micro-batches that steps have.
  std::vector<int> accumulations() const;
  /// This rank's most frequent micro-batches, one for each number of tokens, at most `most`.
  std::vector<ops::Extent> common_sizes(int64_t most);
  /// This rank's micro-batches of a step.
  std::vector<ops::Extent> extents(int64_t step);
  void fill(int64_t step, int64_t micro_batch, const ops::BatchLayout& layout, int32_t* out) {
    train_->fill(step, micro_batch, layout, out);
  }
  /// Tokens without padding, over all ranks.
  int64_t tokens_in_step(int64_t step) { return train_->tokens_in_step(step); }
  /// Samples of a step, over all ranks.
  int64_t samples_in_step(int64_t step) { return train_->samples_in_step(step); }

  bool evaluates() const { return evaluation_ != nullptr; }
  const data::Dataset& evaluation_set() const { return *evaluation_set_; }
  const data::Packs& evaluation_packs() const { return evaluation_->packs(); }
  int64_t evaluation_samples() const { return evaluation_set_->size(); }
  std::vector<ops::Extent> evaluation_extents();
  void fill_evaluation(int64_t batch, const ops::BatchLayout& layout, int32_t* out) {
    evaluation_->fill(batch, 0, layout, out);
  }

 private:
  data::Dataset training_;
  std::unique_ptr<data::Dataset> evaluation_set_;
  std::unique_ptr<data::BatchSource> train_;
  std::unique_ptr<data::BatchSource> evaluation_;
};

}  // namespace trireme::train
