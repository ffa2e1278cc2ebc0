// Tensor, pipeline and data parallelism together compute the step of the single process.
#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/expect_training.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::PipelineSchedule;

struct Layout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int stage = 0;
  int accumulation = 2;
  bool tied = false;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;
  mesh::RankOrder order = mesh::RankOrder::tp_dp_pp;
  config::Recompute recompute = config::Recompute::none;
  int shard_group = 0;
  model::Family family = model::Family::qwen2;
  std::vector<std::string> frozen = {};  // parts of tensors' names

  int ranks() const { return tp * pp * dp; }
};

constexpr int kSamplesPerStep = 80;
constexpr int64_t kVocab = 509;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < kSamplesPerStep * 2 - 5; ++i) lengths.push_back(1 + (i * 7) % 23);
    return random_dataset(lengths, kVocab, 3);
  }();
  return made;
}

/// Four tensor ranks want eight heads, and hold each of the two KV heads twice.
int64_t heads_for(const Layout& layout) { return layout.tp == 4 ? 8 : 6; }

RigOptions options_of(const Layout& layout) {
  RigOptions options;
  options.model = tiny_model({.family = layout.family,
                              .layers = layout.chunks > 1 ? 6 : 3,
                              .heads = heads_for(layout),
                              .head_dim = 8,
                              .vocab = kVocab,
                              .tied = layout.tied,
                              .window = layout.family == model::Family::mistral ? 5 : 0});
  for (model::Parameter& parameter : options.model.parameters) {
    for (const std::string& part : layout.frozen) {
      if (parameter.name.find(part) != std::string::npos) parameter.trainable = false;
    }
  }
  options.dataset = &dataset();
  options.ranks = layout.ranks();
  options.gradients = true;
  config::RunConfig& c = options.config;
  c.optim = config::Optimizer::sgd;
  c.learning_rate = 0.05;
  c.lr_scheduler_type = config::Scheduler::constant;
  c.weight_decay = 0.01;
  c.max_grad_norm = 1.0;
  c.train_sampling_strategy = config::Sampling::random;
  c.max_steps = 5;
  c.gradient_accumulation_steps = layout.accumulation;
  c.per_device_train_batch_size = kSamplesPerStep / (layout.dp * layout.accumulation);
  c.zero.stage = layout.stage;
  c.tensor_parallel_size = layout.tp;
  c.pipeline_parallel_size = layout.pp;
  c.pipeline_schedule = layout.schedule;
  c.virtual_pipeline_size = layout.chunks;
  c.rank_order = layout.order;
  c.shard_group_size = layout.shard_group;
  if (layout.recompute != config::Recompute::none) c.recompute = {{layout.recompute, -1}};
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

const RigResult& single_process(const Layout& layout) {
  static std::map<std::tuple<model::Family, bool, int64_t, bool, std::vector<std::string>>,
                  RigResult>
      known;
  const std::tuple key{layout.family, layout.tied, heads_for(layout), layout.chunks > 1,
                       layout.frozen};
  auto at = known.find(key);
  if (at == known.end()) {
    Layout alone;
    alone.tied = layout.tied;
    RigOptions options = options_of(alone);
    options.model = options_of(layout).model;
    at = known.emplace(key, train(options)).first;
  }
  return at->second;
}

class MeshLayouts : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks() > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

TEST_P(MeshLayouts, ComputeTheStepOfTheSingleProcess) {
  expect_same_training(train(options_of(GetParam())), single_process(GetParam()));
}

std::vector<Layout> tensor_layouts() {
  std::vector<Layout> all;
  for (int tp : {2, 4}) {
    for (bool tied : {false, true}) {
      all.push_back({.tp = tp, .accumulation = 1, .tied = tied});
      for (int stage : {0, 1, 2, 3}) {
        all.push_back({.tp = tp, .dp = 2, .stage = stage, .tied = tied});
      }
    }
    for (config::Recompute level : {config::Recompute::norms, config::Recompute::ffn,
                                    config::Recompute::block}) {
      all.push_back({.tp = tp, .recompute = level});
    }
  }
  return all;
}

std::vector<Layout> pipeline_layouts() {
  std::vector<Layout> all;
  for (int pp : {2, 4}) {
    for (int accumulation : {1, 2, 5, 8}) {
      for (auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
        all.push_back({.pp = pp, .accumulation = accumulation, .tied = accumulation > 1,
                       .schedule = schedule});
      }
      all.push_back({.pp = pp, .accumulation = accumulation, .tied = accumulation > 1,
                     .schedule = PipelineSchedule::interleaved, .chunks = 2});
    }
  }
  return all;
}

std::vector<Layout> mixed_layouts() {
  std::vector<Layout> all;
  for (auto order : {mesh::RankOrder::tp_dp_pp, mesh::RankOrder::tp_pp_dp}) {
    for (int dp : {2, 4}) {
      for (int stage : {1, 2, 3}) {
        all.push_back(
            {.tp = 2, .pp = 2, .dp = dp, .stage = stage, .tied = stage != 2, .order = order});
      }
    }
  }
  for (int stage : {0, 1, 2, 3}) {
    for (auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
      all.push_back({.pp = 2, .dp = 2, .stage = stage, .accumulation = 4, .tied = true,
                     .schedule = schedule, .recompute = config::Recompute::ffn});
    }
    all.push_back({.pp = 2, .dp = 2, .stage = stage, .accumulation = 4, .tied = true,
                   .schedule = PipelineSchedule::interleaved, .chunks = 2});
  }
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .stage = 3, .tied = true,
                 .schedule = PipelineSchedule::zero_bubble, .recompute = config::Recompute::block});
  all.push_back({.pp = 2, .dp = 4, .stage = 3, .tied = true, .shard_group = 2});
  return all;
}

/// Query and key norms with KV heads of their own and shared by ranks; windows.
std::vector<Layout> family_layouts() {
  std::vector<Layout> all;
  for (const model::Family family : {model::Family::qwen3, model::Family::mistral}) {
    all.push_back({.tp = 2, .dp = 2, .stage = 3, .family = family});
    all.push_back({.tp = 4, .recompute = config::Recompute::norms, .family = family});
    all.push_back({.tp = 2, .pp = 2, .schedule = PipelineSchedule::zero_bubble, .family = family});
    all.push_back({.pp = 3, .schedule = PipelineSchedule::zero_bubble,
                   .recompute = config::Recompute::block, .family = family});
  }
  return all;
}

/// Stages that train nothing, have no gradient to hand on, or train a part of each unit.
std::vector<Layout> frozen_layouts() {
  const std::vector<std::string> front = {"embed_tokens", "layers.0."};
  const std::vector<std::string> back = {"layers.1.", "layers.2.", "model.norm", "lm_head"};
  const std::vector<std::string> products = {"proj", "lm_head"};
  std::vector<Layout> all;
  for (const std::vector<std::string>& frozen : {front, back, products}) {
    all.push_back({.tp = 2, .dp = 2, .stage = 2, .frozen = frozen});
    for (auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
      all.push_back({.pp = 4, .accumulation = 5, .schedule = schedule, .frozen = frozen});
      all.push_back({.tp = 2, .pp = 2, .dp = 2, .stage = 3, .schedule = schedule,
                     .recompute = config::Recompute::block, .frozen = frozen});
    }
    all.push_back({.pp = 2, .dp = 2, .stage = 3, .accumulation = 5,
                   .schedule = PipelineSchedule::interleaved, .chunks = 3, .frozen = frozen});
  }
  all.push_back({.tp = 2, .pp = 2, .tied = true, .frozen = {"embed_tokens"}});
  return all;
}

std::string name_of(const Layout& layout) {
  std::string name = "tp" + std::to_string(layout.tp) + "_pp" + std::to_string(layout.pp) + "_dp" +
                     std::to_string(layout.dp) + "_stage" + std::to_string(layout.stage) +
                     "_batches" + std::to_string(layout.accumulation);
  if (layout.family == model::Family::qwen3) name += "_qwen3";
  if (layout.family == model::Family::mistral) name += "_mistral";
  if (layout.tied) name += "_tied";
  if (layout.schedule == PipelineSchedule::zero_bubble) name += "_zero_bubble";
  if (layout.chunks > 1) name += "_chunks" + std::to_string(layout.chunks);
  if (layout.order == mesh::RankOrder::tp_pp_dp) name += "_tp_pp_dp";
  if (layout.shard_group > 0) name += "_group" + std::to_string(layout.shard_group);
  if (layout.recompute != config::Recompute::none) {
    name += "_recompute" + std::to_string(static_cast<int>(layout.recompute));
  }
  for (char c : layout.frozen.empty() ? "" : "_frozen_" + layout.frozen.front()) {
    name += c == '.' ? '_' : c;
  }
  return name;
}

const auto kName = [](const auto& test) { return name_of(test.param); };
INSTANTIATE_TEST_SUITE_P(Tensor, MeshLayouts, ::testing::ValuesIn(tensor_layouts()), kName);
INSTANTIATE_TEST_SUITE_P(Pipeline, MeshLayouts, ::testing::ValuesIn(pipeline_layouts()), kName);
INSTANTIATE_TEST_SUITE_P(Families, MeshLayouts, ::testing::ValuesIn(family_layouts()), kName);
INSTANTIATE_TEST_SUITE_P(Frozen, MeshLayouts, ::testing::ValuesIn(frozen_layouts()), kName);
INSTANTIATE_TEST_SUITE_P(Mixed, MeshLayouts, ::testing::ValuesIn(mixed_layouts()), kName);

}  // namespace
}  // namespace trireme::testing
