// Tensor and pipeline parallelism: what changes no bit, and checkpoints between any two layouts.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "model/hf_weights.h"
#include "support/backends.h"
#include "support/checkpoint_saver.h"
#include "support/expect_bits.h"
#include "support/forwarding_device.h"
#include "support/temp_folder.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

using config::PipelineSchedule;

constexpr int kSamplesPerStep = 24;
constexpr int64_t kSaved = 2;

const data::Dataset& dataset() {
  static const data::Dataset made = [] {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 3 * kSamplesPerStep; ++i) lengths.push_back(2 + (i * 7) % 19);
    return random_dataset(lengths, 67, 12);
  }();
  return made;
}

struct Layout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int stage = 0;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;

  int ranks() const { return tp * pp * dp; }
};

RigOptions options_of(const Layout& layout, bool tied) {
  RigOptions options;
  options.model = tiny_model({.layers = 4, .heads = 4, .head_dim = 8, .tied = tied});
  options.dataset = &dataset();
  options.ranks = layout.ranks();
  config::RunConfig& c = options.config;
  c.learning_rate = 0.003;
  c.weight_decay = 0.1;
  c.max_steps = 3;
  c.max_grad_norm = 0;
  c.gradient_accumulation_steps = 4;
  c.per_device_train_batch_size = kSamplesPerStep / (layout.dp * 4);
  c.zero.stage = layout.stage;
  c.tensor_parallel_size = layout.tp;
  c.pipeline_parallel_size = layout.pp;
  c.pipeline_schedule = layout.schedule;
  c.virtual_pipeline_size = layout.chunks;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 11);
  };
  return options;
}

/// Without clipping: the norm is a sum over stages, whose last bits their number decides.
TEST(MeshBits, StagesAndSchedulesChangeNone) {
  if (max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
  const RigResult alone = train(options_of({}, false));
  for (int pp : {2, 4}) {
    for (const Layout& layout :
         {Layout{.pp = pp}, Layout{.pp = pp, .schedule = PipelineSchedule::zero_bubble},
          Layout{.pp = pp > 2 ? 2 : pp, .schedule = PipelineSchedule::interleaved, .chunks = 2}}) {
      const RigResult staged = train(options_of(layout, false));
      expect_equal_state(staged, alone);
      for (size_t s = 0; s < alone.steps.size(); ++s) {
        EXPECT_EQ(train::value(staged.steps[s], ops::Control::loss),
                  train::value(alone.steps[s], ops::Control::loss));
      }
    }
  }
}

/// Nothing is sent of an empty micro-batch, the first of a step or one in between.
TEST(MeshBits, EmptyMicroBatchesChangeNone) {
  if (max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
  const auto with_gaps = [](const Layout& layout) {
    RigOptions options = options_of(layout, false);
    options.empty = [](int data_rank, int64_t step, int64_t micro_batch) {
      return (data_rank + step + micro_batch) % 3 == 0;
    };
    return train(options);
  };
  const RigResult flat = with_gaps({.dp = 2, .stage = 2});
  for (auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
    expect_equal_state(with_gaps({.pp = 2, .dp = 2, .stage = 2, .schedule = schedule}), flat);
  }
}

/// Late collectives, released memory full of NaN, one stream for all: as the plain run.
TEST(MeshBits, TimingChangesNone) {
  if (max_ranks() < 8) GTEST_SKIP() << "more ranks than GPUs";
  for (auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
    const Layout layout{.tp = 2, .pp = 2, .dp = 2, .stage = 3, .schedule = schedule};
    const RigResult plain = train(options_of(layout, true));
    RigOptions late = options_of(layout, true);
    late.config.debug_poison = true;
    late.device.delay_collectives = std::chrono::milliseconds(1);
    expect_identical(train(late), plain);
    RigOptions one_stream = options_of(layout, true);
    one_stream.config.zero.overlap_comm = false;
    expect_identical(train(one_stream), plain);
  }
}

const data::Dataset& evaluation_set() {
  static const data::Dataset made = random_dataset({8, 31, 2, 1, 17, 5, 40, 3, 9}, 67, 77);
  return made;
}

/// What every rank has heard of an evaluation before step 1, and how the training ended.
std::pair<std::vector<train::EvalSums>, RigResult> evaluated(const Layout& layout) {
  RigOptions options = options_of(layout, true);
  options.evaluation = &evaluation_set();
  options.config.debug_poison = true;
  std::vector<train::EvalSums> sums(static_cast<size_t>(options.ranks));
  std::vector<std::vector<ops::Extent>> extents;
  for (int r = 0; r < options.ranks; ++r) extents.push_back(evaluation_extents(options, r));
  options.before_step = [&](train::Session& session, int rank, int64_t step) {
    if (step != 1) return;
    session.flush();
    sums[static_cast<size_t>(rank)] = session.evaluate(extents[static_cast<size_t>(rank)]);
  };
  RigResult result = train(options);
  return {sums, std::move(result)};
}

TEST(MeshEvaluation, IsThatOfTheSingleProcessAndLeavesNoTrace) {
  if (max_ranks() < 8) GTEST_SKIP() << "more ranks than GPUs";
  const train::EvalSums alone = evaluated({}).first[0];
  for (const Layout& layout :
       {Layout{.tp = 4}, Layout{.pp = 4, .schedule = PipelineSchedule::zero_bubble},
        Layout{.pp = 3, .schedule = PipelineSchedule::interleaved, .chunks = 2},
        Layout{.tp = 2, .pp = 2, .dp = 2, .stage = 3}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {} dp {}", layout.tp, layout.pp, layout.dp));
    const auto [sums, result] = evaluated(layout);
    for (const train::EvalSums& mine : sums) {
      EXPECT_EQ(mine.tokens, alone.tokens);
      EXPECT_NEAR(mine.loss, alone.loss, 1e-5 * alone.loss);
      EXPECT_EQ(mine.loss, sums[0].loss);
    }
    RigOptions plain = options_of(layout, true);
    plain.config.debug_poison = true;
    expect_equal_state(result, train(plain));
  }
}

/// Remembers where a rank's device memory lies.
class ArenaDevice final : public ForwardingDevice {
 public:
  ArenaDevice(device::Device& device, std::byte*& arena)
      : ForwardingDevice(device), arena_(arena) {}
  std::byte* allocate(device::Space space, int64_t bytes) override {
    std::byte* const made = ForwardingDevice::allocate(space, bytes);
    if (space == device::Space::device) arena_ = made;
    return made;
  }

 private:
  std::byte*& arena_;
};

/// The weights of the groups that `pick` chooses, as one rank holds them.
template <typename Pick>
std::vector<std::byte> held_weights(const plan::Plan& plan, const std::byte* arena,
                                    const Pick& pick) {
  std::vector<std::byte> all;
  for (size_t g = 0; g < plan.groups.groups.size(); ++g) {
    if (!pick(plan.groups.groups[g])) continue;
    const plan::Buffer& value = plan.flush.buffers[static_cast<size_t>(plan.state.groups[g].value)];
    all.insert(all.end(), arena + value.offset, arena + value.offset + value.bytes);
  }
  return all;
}

/// Both ends of a pipeline hold a tied embedding, every tensor rank the norm gains: the copies stay
/// equal, bit for bit, though only one is saved.
TEST(MeshBits, CopiesDoNotDriftApart) {
  if (max_ranks() < 8 || on_cuda()) GTEST_SKIP() << "reads the memory of eight ranks";
  const std::pair<int, config::Precision> cases[] = {{0, config::Precision::float32},
                                                     {1, config::Precision::float32},
                                                     {2, config::Precision::float32},
                                                     {3, config::Precision::float32},
                                                     {0, config::Precision::bfloat16},
                                                     {3, config::Precision::bfloat16}};
  for (const auto& [stage, state] : cases) {
    RigOptions options = options_of({.tp = 2, .pp = 2, .dp = 2, .stage = stage}, true);
    options.config.max_grad_norm = 0.5;
    options.config.bf16 = state == config::Precision::bfloat16;  // rounded stochastically
    options.config.master_dtype = options.config.moment_dtype = state;
    std::vector<std::byte*> arenas(8, nullptr);
    std::map<std::tuple<int64_t, int64_t>, std::vector<std::byte>> tied;   // by data, tensor rank
    std::map<std::tuple<int64_t, int64_t>, std::vector<std::byte>> gains;  // by data rank, stage
    std::mutex mutex;
    options.wrap = [&](int rank, device::Device& device) {
      return std::make_unique<ArenaDevice>(device, arenas[static_cast<size_t>(rank)]);
    };
    const auto same = [](auto& known, const auto& key, std::vector<std::byte> weights) {
      ASSERT_FALSE(weights.empty());
      const auto [at, fresh] = known.try_emplace(key, weights);
      EXPECT_TRUE(at->second == weights);
    };
    options.after_step = [&](train::Session& session, int rank, int64_t step,
                             const train::ControlValues&) {
      if (step + 1 < options.config.max_steps) return;
      session.flush();
      const plan::Plan& plan = session.plan();
      const std::byte* arena = arenas[static_cast<size_t>(rank)];
      const mesh::Coordinates& at = plan.mesh.at;
      const std::lock_guard lock(mutex);
      same(tied, std::tuple{at.dp, at.tp},
           held_weights(plan, arena, [](const auto& group) { return group.key.tied >= 0; }));
      same(gains, std::tuple{at.dp, at.pp},
           held_weights(plan, arena, [](const auto& group) { return group.key.tensor_sum; }));
    };
    train(options);
    EXPECT_EQ(tied.size(), 4U);
    EXPECT_EQ(gains.size(), 4U);
  }
}

TEST(MeshCheckpoints, OfAnyLayoutLoadInAnyOther) {
  if (max_ranks() < 8) GTEST_SKIP() << "more ranks than GPUs";
  const Layout layouts[] = {{},
                            {.dp = 3, .stage = 3},
                            {.tp = 4, .stage = 1},
                            {.pp = 4, .schedule = PipelineSchedule::zero_bubble},
                            {.tp = 2, .pp = 2, .dp = 2, .stage = 2},
                            {.pp = 2, .dp = 2, .stage = 1,
                             .schedule = PipelineSchedule::interleaved, .chunks = 2}};
  for (const Layout& from : layouts) {
    const test::TempFolder temporary;
    RigOptions options = options_of(from, true);
    options.steps = kSaved;
    CheckpointSaver saver(options, temporary.path(), kSaved);
    const RigResult saved = train(options);
    for (const Layout& to : layouts) {
      SCOPED_TRACE(fmt::format("tp {} pp {} dp {} to tp {} pp {} dp {}", from.tp, from.pp, from.dp,
                               to.tp, to.pp, to.dp));
      RigOptions other = options_of(to, true);
      other.steps = other.first_step = kSaved;
      other.source = [&] { return std::make_unique<SavedSource>(saver.folder()); };
      expect_equal_state(train(other), saved);
    }
    model::HfWeights weights(saver.folder());
    for (const model::Parameter& parameter : options.model.parameters) {
      std::vector<float> whole(static_cast<size_t>(parameter.size()));
      weights.read_box(parameter.name, mesh::whole(parameter.shape), whole.data());
      EXPECT_EQ(whole, saved.masters.at(parameter.name)) << parameter.name;
    }
  }
}

/// On rank 0 no trainer_state.json can be made in the folder of a checkpoint.
class BlockedState final : public checkpoint::Coordinator {
 public:
  explicit BlockedState(checkpoint::Coordinator& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int world_size() const override { return ranks_.world_size(); }
  std::vector<std::string> exchange(std::string_view mine) override {
    auto texts = ranks_.exchange(mine);
    std::error_code ignored;
    if (rank() == 0 && std::filesystem::is_directory(texts[0], ignored)) {
      std::filesystem::create_directory(std::filesystem::path(texts[0]) / train::kTrainerState);
    }
    return texts;
  }

 private:
  checkpoint::Coordinator& ranks_;
};

/// The others export with it, and learn of it together.
TEST(MeshCheckpoints, WhatRankZeroAloneCannotWriteKeepsNobodyWaiting) {
  if (max_ranks() < 2) GTEST_SKIP() << "more ranks than GPUs";
  for (const Layout& layout : {Layout{.dp = 2, .stage = 3}, Layout{.tp = 2}, Layout{.pp = 2}}) {
    const test::TempFolder temporary;
    RigOptions options = options_of(layout, true);
    options.steps = 1;
    test::ThreadWorld world(options.ranks);
    std::vector<std::string> problems(static_cast<size_t>(options.ranks));
    const CheckpointSaver folders(options, temporary.path(), 1);
    options.after_step = [&](train::Session& session, int rank, int64_t,
                             const train::ControlValues& control) {
      session.flush();
      test::ThreadCoordinator ranks(world, rank);
      BlockedState blocked(ranks);
      try {
        save_checkpoint(session, blocked, {folders.output_dir, folders.model_folder, 1, 0}, control,
                        Json());
      } catch (const checkpoint::AgreedError& error) {
        problems[static_cast<size_t>(rank)] = error.what();
      }
    };
    train(options);
    EXPECT_NE(problems[0].find(train::kTrainerState), std::string::npos) << problems[0];
    EXPECT_EQ(problems[1], problems[0]);
    EXPECT_FALSE(std::filesystem::exists(folders.folder()));
  }
}

}  // namespace
}  // namespace trireme::testing
