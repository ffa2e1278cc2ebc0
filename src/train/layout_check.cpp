#include "train/layout_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "base/random.h"
#include "config/words.h"

namespace trireme::train {

namespace {

using config::PipelineSchedule;
using config::RunConfig;

/// Numbers drawn one after the other.
class Draw {
 public:
  explicit Draw(uint64_t seed) : stream_(seed, "layout") {}

  /// In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(stream_.bits(next_++) % static_cast<uint64_t>(high - low + 1));
  }
  bool maybe() { return between(0, 1) == 1; }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(between(0, std::ssize(values) - 1))];
  }

 private:
  RandomStream stream_;
  int64_t next_ = 0;
};

/// Sizes of the axes, whose product is at most `max_ranks`.
void draw_mesh(Draw& draw, int max_ranks, DrawnLayout& drawn) {
  RunConfig& c = drawn.config;
  const auto axis = [&](std::vector<int64_t> sizes, int64_t left) {
    std::erase_if(sizes, [&](int64_t size) { return size > left; });
    return draw.one_of(sizes);
  };
  const bool data_first = draw.maybe();
  int64_t data_ranks = data_first ? axis({1, 2, 3, 4}, max_ranks) : 1;
  int64_t left = max_ranks / data_ranks;
  c.pipeline_parallel_size = axis({1, 1, 2, 2, 3, 4}, left);
  left /= c.pipeline_parallel_size;
  c.tensor_parallel_size = axis({1, 1, 2, 2, 4}, left);
  left /= c.tensor_parallel_size;
  if (!data_first) data_ranks = axis({1, 2, 3, 4}, left);
  drawn.ranks = static_cast<int>(c.pipeline_parallel_size * c.tensor_parallel_size * data_ranks);
  c.rank_order = draw.maybe() ? mesh::RankOrder::tp_dp_pp : mesh::RankOrder::tp_pp_dp;
  if (c.pipeline_parallel_size > 1) {
    c.pipeline_schedule =
        draw.one_of<PipelineSchedule>({PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
                                       PipelineSchedule::zero_bubble});
  }
  if (c.pipeline_schedule == PipelineSchedule::interleaved) {
    c.virtual_pipeline_size = draw.between(2, 3);
  }
  c.zero.stage = static_cast<int>(draw.between(0, 3));
  if (c.zero.stage > 0 && data_ranks % 2 == 0 && draw.maybe()) {
    c.shard_group_size = draw.one_of<int64_t>({1, 2});
  }
}

/// A model that the mesh can cut.
void draw_model(Draw& draw, DrawnLayout& drawn) {
  const int64_t tensor = drawn.config.tensor_parallel_size;
  const int64_t parts = drawn.config.pipeline_parallel_size * drawn.config.virtual_pipeline_size;
  TinyModel& model = drawn.model;
  model.family = draw.one_of<model::Family>(
      {model::Family::llama, model::Family::qwen2, model::Family::qwen3, model::Family::mistral});
  if (model.family == model::Family::mistral && draw.maybe()) model.window = draw.between(3, 30);
  model.hidden = draw.between(8, 48);  // narrower norms are badly conditioned
  model.layers = std::max<int64_t>(1, parts - 2) + draw.between(0, 2);
  model.heads = tensor * draw.between(1, 3);
  std::vector<int64_t> kv_heads;
  for (int64_t kv = 1; kv <= model.heads; ++kv) {
    if (model.heads % kv == 0 && (kv % tensor == 0 || tensor % kv == 0)) kv_heads.push_back(kv);
  }
  model.kv_heads = draw.one_of(kv_heads);
  model.head_dim = 8 * draw.between(1, 2);
  model.ffn = tensor * draw.between(1, 20);
  model.vocab = draw.one_of<int64_t>({draw.between(2, 90), 509});
  model.tied = draw.maybe();
}

void draw_batches(Draw& draw, DrawnLayout& drawn) {
  RunConfig& c = drawn.config;
  const int64_t copy = c.tensor_parallel_size * c.pipeline_parallel_size;
  c.gradient_accumulation_steps =
      c.pipeline_parallel_size > 1 ? draw.between(1, 8) : draw.between(1, 3);
  c.per_device_train_batch_size = draw.between(1, 2);
  drawn.samples_per_step =
      c.gradient_accumulation_steps * c.per_device_train_batch_size * drawn.ranks / copy;
  const int64_t last_step = draw.between(1, drawn.samples_per_step);
  for (int64_t i = 0; i < drawn.samples_per_step + last_step; ++i) {
    drawn.lengths.push_back(draw.between(1, 33));
  }
}

void draw_memory(Draw& draw, DrawnLayout& drawn) {
  RunConfig& c = drawn.config;
  c.reduce_at = draw.one_of<config::ReduceAt>(
      {config::ReduceAt::automatic, config::ReduceAt::micro, config::ReduceAt::boundary});
  c.zero.overlap_comm = draw.between(0, 3) > 0;
  c.debug_poison = draw.maybe();
  if (draw.maybe()) c.zero.param_persistence_threshold = draw.one_of<int64_t>({50, 400});
  if (draw.maybe()) c.zero.prefetch_bucket_size = draw.one_of<int64_t>({0, 10000, 1 << 30});
  for (int64_t left = drawn.model.layers; left > 0 && draw.maybe();) {
    const int64_t count = draw.between(1, left);
    c.recompute.push_back({static_cast<config::Recompute>(draw.between(0, 6)), count});
    left -= count;
  }
}

/// What layout and single process have in common.
void set_training(RunConfig& c) {
  c.optim = config::Optimizer::sgd;
  c.learning_rate = 0.05;  // wrong updates show, and rounding is not blown up
  c.lr_scheduler_type = config::Scheduler::constant;
  c.weight_decay = 0.01;
  c.max_grad_norm = 1;
  c.num_train_epochs = 2;
}

TrialResult run_trial(const TrialOptions& options, const RunRanks& run_ranks) {
  Trial trial(options);
  run_ranks(options.ranks,
            [&](int rank, device::Backend& backend) { trial.run_rank(rank, backend); });
  return trial.take_result();
}

/// Largest relative difference of a field of any step.
double step_difference(const TrialResult& a, const TrialResult& b, ops::Control field) {
  if (a.steps.size() != b.steps.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t s = 0; s < b.steps.size(); ++s) {
    const double reference = value(b.steps[s], field);
    const double found = value(a.steps[s], field);
    if (std::isnan(found) && std::isnan(reference)) continue;  // no token was trained
    const double difference = std::abs(found - reference) / std::max(std::abs(reference), 1e-30);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  return worst;
}

}  // namespace

DrawnLayout draw_layout(uint64_t seed, int max_ranks) {
  check(max_ranks >= 1, "a layout of no ranks");
  DrawnLayout drawn;
  drawn.seed = seed;
  Draw draw(seed);
  set_training(drawn.config);
  draw_mesh(draw, max_ranks, drawn);
  draw_model(draw, drawn);
  draw_batches(draw, drawn);
  draw_memory(draw, drawn);
  return drawn;
}

std::string layout_words(const DrawnLayout& drawn) {
  const RunConfig& c = drawn.config;
  const int64_t copy = c.tensor_parallel_size * c.pipeline_parallel_size;
  std::string text =
      fmt::format("dp{} tp{} pp{} zero{} ga{}", drawn.ranks / copy, c.tensor_parallel_size,
                  c.pipeline_parallel_size, c.zero.stage, c.gradient_accumulation_steps);
  if (c.pipeline_parallel_size > 1)
    text += fmt::format(" {}", config::word_of(c.pipeline_schedule));
  if (c.virtual_pipeline_size > 1) text += fmt::format(" x{}", c.virtual_pipeline_size);
  if (c.rank_order != mesh::RankOrder{}) text += fmt::format(" {}", config::word_of(c.rank_order));
  if (c.shard_group_size > 0) text += fmt::format(" group{}", c.shard_group_size);
  if (c.reduce_at != config::ReduceAt::automatic) {
    text += fmt::format(" {}", config::word_of(c.reduce_at));
  }
  if (!c.zero.overlap_comm) text += " no_overlap";
  if (c.zero.param_persistence_threshold > 0) {
    text += fmt::format(" persist{}", c.zero.param_persistence_threshold);
  }
  if (c.zero.prefetch_bucket_size) text += fmt::format(" prefetch{}", *c.zero.prefetch_bucket_size);
  for (const config::RecomputeSpan& span : c.recompute) {
    text += fmt::format(" {}:{}", config::word_of(span.level), span.blocks);
  }
  return text;
}

std::string model_words(const DrawnLayout& drawn) {
  const TinyModel& m = drawn.model;
  static constexpr std::array<std::string_view, 4> kFamilies = {"llama", "qwen2", "qwen3",
                                                                "mistral"};
  return fmt::format("{} of {} blocks {} wide, {}/{} heads, ffn {}, vocab {}{}{}",
                     kFamilies[static_cast<size_t>(m.family)], m.layers, m.hidden, m.heads,
                     m.kv_heads, m.ffn, m.vocab, m.tied ? ", tied" : "",
                     m.window > 0 ? fmt::format(", window {}", m.window) : "");
}

bool Differences::agree() const {
  // Sums in another order: a few units in the last place of f32, times the depth of the sums.
  return gradients < 3e-5 && norm < 3e-5 && loss < 1e-5 && weights < 1e-5;
}

Differences compare_with_single_process(const DrawnLayout& drawn, const RunRanks& run_ranks) {
  const data::Dataset dataset = random_dataset(drawn.lengths, drawn.model.vocab, drawn.seed);
  TrialOptions options;
  options.model = tiny_model(drawn.model);
  options.dataset = &dataset;
  options.gradients = true;
  options.source = [&] { return std::make_unique<RoughSource>(drawn.seed); };
  set_training(options.config);
  options.config.per_device_train_batch_size = drawn.samples_per_step;
  const TrialResult expected = run_trial(options, run_ranks);
  options.config = drawn.config;
  options.ranks = drawn.ranks;
  const TrialResult found = run_trial(options, run_ranks);
  // Some gradients are sums that cancel, and nothing but rounding.
  constexpr double kFloor = 0.01;
  return {relative_difference(found.gradients, expected.gradients, kFloor),
          step_difference(found, expected, ops::Control::grad_norm),
          step_difference(found, expected, ops::Control::loss),
          relative_difference(found.exported, expected.exported)};
}

}  // namespace trireme::train
