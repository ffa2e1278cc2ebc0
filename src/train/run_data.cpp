#include "train/run_data.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"

namespace trireme::train {

namespace {

bool wraps(const config::RunConfig& config) {
  return config.packing_strategy == config::PackingStrategy::wrapped;
}

data::DatasetOptions dataset_options(const config::RunConfig& config,
                                     const model::ModelConfig& model, bool packed) {
  data::DatasetOptions options;
  options.tokenizer_folder = config.model_name_or_path;
  options.vocab_size = model.vocab_size;
  options.max_seq_length = config.max_seq_length;
  options.on_long = config.on_long;
  options.completion_only = config.completion_only_loss;
  options.wrapped = packed && wraps(config);
  return options;
}

data::StepPlanOptions step_options(const config::RunConfig& config, int64_t num_samples,
                                   int64_t data_ranks) {
  data::StepPlanOptions options;
  options.num_samples = num_samples;
  options.batch_size = config.per_device_train_batch_size;
  options.num_ranks = data_ranks;
  options.accumulation_steps = config.gradient_accumulation_steps;
  options.num_epochs = config.num_train_epochs;
  options.max_steps = config.max_steps;
  options.shuffle = config.train_sampling_strategy == config::Sampling::random;
  options.seed = config.data_seed.value_or(config.seed);
  options.even_batches = config.even_batches;
  return options;
}

}  // namespace

RunRows read_rows(const config::RunConfig& config, const model::ModelConfig& model) {
  const data::DatasetOptions options = dataset_options(config, model, config.packing);
  RunRows rows{data::Dataset::load(config.data_path, options), nullptr};
  if (rows.training.counts().trained == 0) {
    throw DataError(fmt::format(
        "{}: there is nothing to learn: of samples of at most {} tokens, no label behind the first "
        "is other than {}; give rows with labels, or a longer max_seq_length",
        config.data_path, config.max_seq_length, data::kNotTrained));
  }
  if (config.evaluates()) {
    rows.evaluation = std::make_unique<data::Dataset>(data::Dataset::load(
        config.eval_path, dataset_options(config, model, config.packs_evaluation())));
  }
  return rows;
}

data::Packs packs_of(const config::RunConfig& config, const data::Dataset& samples, bool packed) {
  // A block of wrapped rows is as long as a pack may be.
  if (!packed || wraps(config)) return data::Packs(samples.size());
  return data::Packs::best_fit(samples.lengths(), config.max_seq_length);
}

RunData::RunData(const config::RunConfig& config, RunRows rows, int64_t data_ranks,
                 int64_t data_rank, int64_t token_multiple)
    : training_(std::move(rows.training)), evaluation_set_(std::move(rows.evaluation)) {
  data::Packs packs = packs_of(config, training_, config.packing);
  const data::StepPlan plan(step_options(config, packs.size(), data_ranks));
  train_ = std::make_unique<data::BatchSource>(training_, std::move(packs), plan, data_rank,
                                               token_multiple);
  if (!evaluation_set_) return;
  data::Packs evaluated = packs_of(config, *evaluation_set_, config.packs_evaluation());
  const data::StepPlan evaluation(
      data::evaluation_plan(evaluated.size(), config.per_device_eval_batch_size, data_ranks));
  evaluation_ = std::make_unique<data::BatchSource>(*evaluation_set_, std::move(evaluated),
                                                    evaluation, data_rank, token_multiple);
}

void grow(ops::Extent& capacity, const ops::Extent& other) {
  capacity.tokens = std::max(capacity.tokens, other.tokens);
  capacity.sequences = std::max(capacity.sequences, other.sequences);
  capacity.longest = std::max(capacity.longest, other.longest);
}

ops::Extent RunData::capacity() const {
  ops::Extent largest = train_->capacity();
  if (evaluation_) {
    grow(largest, evaluation_->capacity());
  }
  return largest;
}

std::vector<int> RunData::accumulations() const {
  // Only the last step of an epoch differs, and all epochs are alike.
  std::set<int> found;
  const int64_t steps = std::min(total_steps(), plan().steps_per_epoch());
  for (int64_t s : {int64_t{0}, steps - 1}) {
    found.insert(static_cast<int>(plan().at(s).num_micro_batches));
  }
  return {found.begin(), found.end()};
}

std::vector<ops::Extent> RunData::common_sizes(int64_t most) {
  if (most <= 0) return {};
  std::map<int64_t, std::pair<int64_t, ops::Extent>> seen;  // by tokens: how often, and one
  const auto count = [&](const ops::Extent& extent) {
    if (extent.tokens == 0) return;
    auto& [times, first] = seen[extent.tokens];
    if (times++ == 0) first = extent;
  };
  for (int64_t step = 0; step < total_steps(); ++step) {
    for (const ops::Extent& extent : extents(step)) count(extent);
  }
  if (evaluation_) {
    for (const ops::Extent& extent : evaluation_extents()) count(extent);
  }
  std::vector<std::pair<int64_t, ops::Extent>> sizes;
  for (const auto& [tokens, size] : seen) sizes.push_back(size);
  std::ranges::stable_sort(sizes, std::greater(), [](const auto& size) { return size.first; });
  if (static_cast<int64_t>(sizes.size()) > most) sizes.resize(static_cast<size_t>(most));
  std::vector<ops::Extent> found;
  for (const auto& [times, extent] : sizes) found.push_back(extent);
  return found;
}

std::vector<ops::Extent> RunData::extents(int64_t step) {
  std::vector<ops::Extent> found;
  const int64_t count = plan().at(step).num_micro_batches;
  for (int64_t m = 0; m < count; ++m) found.push_back(train_->extent(step, m));
  return found;
}

std::vector<ops::Extent> RunData::evaluation_extents() {
  std::vector<ops::Extent> found;
  for (int64_t s = 0; s < evaluation_->plan().total_steps(); ++s) {
    found.push_back(evaluation_->extent(s, 0));
  }
  return found;
}

}  // namespace trireme::train
