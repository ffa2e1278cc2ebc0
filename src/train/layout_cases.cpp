#include "train/layout_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>

#include "base/error.h"
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
void draw_mesh(Draw& draw, int max_ranks, LayoutCase& drawn) {
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
void draw_model(Draw& draw, LayoutCase& drawn) {
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

void draw_batches(Draw& draw, LayoutCase& drawn) {
  RunConfig& c = drawn.config;
  const int64_t copy = c.tensor_parallel_size * c.pipeline_parallel_size;
  c.gradient_accumulation_steps =
      c.pipeline_parallel_size > 1 ? draw.between(1, 8) : draw.between(1, 3);
  c.per_device_train_batch_size = draw.between(1, 2);
  drawn.samples_per_step =
      c.gradient_accumulation_steps * c.per_device_train_batch_size * drawn.ranks / copy;
  c.packing = draw.between(0, 3) == 0;
  if (c.packing) c.max_seq_length = draw.between(33, 66);
  const int64_t last_step = draw.between(1, drawn.samples_per_step);
  const int64_t samples = (drawn.samples_per_step + last_step) * (c.packing ? 2 : 1);
  for (int64_t i = 0; i < samples; ++i) drawn.lengths.push_back(draw.between(1, 33));
}

void draw_numbers(Draw& draw, LayoutCase& drawn) {
  constexpr int64_t kWide = 16;  // narrower models blow the rounding of bf16 up
  drawn.config.bf16 = draw.between(0, 2) == 0 && drawn.model.hidden >= kWide;
  if (drawn.config.bf16 && draw.maybe()) drawn.config.master_dtype = config::Precision::bfloat16;
}

void draw_memory(Draw& draw, LayoutCase& drawn) {
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

/// Ascending.
std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found;
}

/// Model and samples of every_layout: heads, blocks, feed-forward rows and vocabulary that every
/// cut of so many ranks divides, and two micro-batches of one sample a rank. Where ranks double,
/// tensor ranks have KV heads of their own or share them; else they share one.
LayoutCase undivided(int ranks, bool bf16) {
  LayoutCase test;
  test.seed = 1;
  test.ranks = ranks;
  test.model = {
      .layers = 2 * ranks,
      .heads = ranks,
      .kv_heads = std::has_single_bit(static_cast<unsigned>(ranks)) ? std::min(2, ranks) : 1,
      .ffn = 6 * ranks,
      .vocab = 12 * ranks,
      .tied = !bf16};
  test.samples_per_step = 2 * ranks;
  for (int64_t i = 0; i < 2 * test.samples_per_step - 1; ++i) {
    test.lengths.push_back(1 + (i * 7) % 23);
  }
  set_training(test.config);
  test.config.bf16 = bf16;
  test.config.per_device_train_batch_size = 1;
  return test;
}

/// Every state of the cut's data ranks, and under the last of them the other schedules of its
/// pipeline.
void add_variants(LayoutCase cut, std::vector<LayoutCase>& all) {
  RunConfig& c = cut.config;
  const int64_t stages = c.pipeline_parallel_size;
  const int64_t data_ranks = cut.ranks / (c.tensor_parallel_size * stages);
  for (c.zero.stage = 0; c.zero.stage <= (data_ranks > 1 ? 3 : 0); ++c.zero.stage) {
    all.push_back(cut);
    for (const int64_t group : divisors(data_ranks)) {
      if (c.zero.stage == 0 || group == 1 || group == data_ranks) continue;
      all.push_back(cut);
      all.back().config.shard_group_size = group;
    }
  }
  if (stages == 1) return;
  c.zero.stage = all.back().config.zero.stage;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::interleaved, PipelineSchedule::zero_bubble}) {
    all.push_back(cut);
    all.back().config.pipeline_schedule = schedule;
    if (schedule == PipelineSchedule::interleaved) all.back().config.virtual_pipeline_size = 2;
  }
}

}  // namespace

LayoutCase draw_layout(uint64_t seed, int max_ranks) {
  check(max_ranks >= 1, "a layout of no ranks");
  LayoutCase drawn;
  drawn.seed = seed;
  Draw draw(seed);
  set_training(drawn.config);
  draw_mesh(draw, max_ranks, drawn);
  draw_model(draw, drawn);
  draw_batches(draw, drawn);
  draw_memory(draw, drawn);
  draw_numbers(draw, drawn);
  return drawn;
}

std::vector<LayoutCase> every_layout(int ranks) {
  check(ranks >= 1, "a layout of no ranks");
  std::vector<LayoutCase> all;
  for (const bool bf16 : {false, true}) {
    const LayoutCase common = undivided(ranks, bf16);
    for (const int64_t tensor : divisors(ranks)) {
      for (const int64_t stages : divisors(ranks / tensor)) {
        LayoutCase cut = common;
        cut.config.tensor_parallel_size = tensor;
        cut.config.pipeline_parallel_size = stages;
        cut.config.gradient_accumulation_steps = 2 * tensor * stages;
        add_variants(cut, all);
      }
    }
  }
  return all;
}

config::RunConfig single_process_config(const LayoutCase& test) {
  RunConfig single;
  set_training(single);
  single.bf16 = test.config.bf16;
  single.master_dtype = test.config.master_dtype;
  single.packing = test.config.packing;
  single.max_seq_length = test.config.max_seq_length;
  single.per_device_train_batch_size = test.samples_per_step;
  return single;
}

bool train_alike(const LayoutCase& a, const LayoutCase& b) {
  const auto what = [](const LayoutCase& test) {
    const RunConfig& c = test.config;
    return std::tie(test.seed, test.model, test.lengths, test.samples_per_step, c.bf16,
                    c.master_dtype, c.packing, c.max_seq_length);
  };
  return what(a) == what(b);
}

std::string layout_words(const LayoutCase& test) {
  const RunConfig& c = test.config;
  const int64_t copy = c.tensor_parallel_size * c.pipeline_parallel_size;
  std::string text =
      fmt::format("dp{} tp{} pp{} zero{} ga{}", test.ranks / copy, c.tensor_parallel_size,
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
  if (c.packing) text += " packing";
  if (c.bf16) text += c.master_dtype == config::Precision::bfloat16 ? " bf16_masters" : " bf16";
  return text;
}

std::string model_words(const LayoutCase& test) {
  const TinyModel& m = test.model;
  static constexpr std::array<std::string_view, 4> kFamilies = {"llama", "qwen2", "qwen3",
                                                                "mistral"};
  return fmt::format("{} of {} blocks {} wide, {}/{} heads, ffn {}, vocab {}{}{}",
                     kFamilies[static_cast<size_t>(m.family)], m.layers, m.hidden, m.heads,
                     m.kv_heads, m.ffn, m.vocab, m.tied ? ", tied" : "",
                     m.window > 0 ? fmt::format(", window {}", m.window) : "");
}

}  // namespace trireme::train
