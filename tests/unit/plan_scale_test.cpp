// Sizes and shapes of real plans, on the null backend.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "plan/placement.h"
#include "plan/print.h"
#include "support/live_bytes.h"
#include "support/null_plan.h"
#include "support/rig.h"

namespace trireme::plan {
namespace {

using testing::null_plan;
using testing::NullPlanOptions;

NullPlanOptions seven_billion(int64_t ranks) {
  NullPlanOptions options;
  options.model = model::build_model(testing::qwen2_7b());
  options.config.bf16 = true;
  options.config.zero.stage = 3;
  options.ranks = ranks;
  options.capacity = {8192, 2, 4096};
  options.accumulations = {1};
  return options;
}

TEST(Scale, SevenBillionWastesNoMemory) {
  const Plan plan = null_plan(seven_billion(8));
  const Program& program = plan.train.at(1);
  const Peak peak = find_peak(program, Space::device);
  int64_t persistent = 0;
  for (const Buffer& buffer : plan.state.buffers) {
    if (buffer.space == Space::device) persistent += buffer.bytes;
  }
  const int64_t arena = plan.arenas[static_cast<size_t>(Space::device)];
  EXPECT_LE(static_cast<double>(arena), 1.05 * static_cast<double>(persistent + peak.live_bytes));
  // 16 bytes a parameter are spread over the ranks.
  const double state = 16.0 * static_cast<double>(plan.model.num_parameters()) / 8;
  EXPECT_NEAR(static_cast<double>(persistent), state, 0.01 * state);
}

/// Against the most that can live at one moment of any run: while the head's gradient is still
/// being reduced, the last block's backward pass has begun, so both count. `most` is above 1 where
/// buffers with many lives meet each other, two at a time and never all at once: each keeps its
/// offset.
void expect_packed(const std::string& what, const NullPlanOptions& options, double most) {
  for (const int64_t rank : {int64_t{0}, options.ranks - 1}) {
    NullPlanOptions mine = options;
    mine.rank = rank;
    const Plan plan = null_plan(mine);
    int64_t least = 0;
    for (const Buffer& buffer : plan.state.buffers) {
      if (buffer.space == Space::device) least += buffer.bytes;
    }
    least += testing::most_live_bytes(plan.train.rbegin()->second, Space::device);
    const int64_t arena = plan.arenas[static_cast<size_t>(Space::device)];
    const double ratio = static_cast<double>(arena) / static_cast<double>(least);
    std::printf("%s, rank %ld: %.2f GiB, %.3f of the most that can live\n", what.c_str(), rank,
                static_cast<double>(arena) / (1 << 30), ratio);
    EXPECT_GE(ratio, 1.0) << what << ", rank " << rank;
    EXPECT_LE(ratio, most) << what << ", rank " << rank;
  }
}

TEST(Scale, RecomputedBlocksWasteNoMemory) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int accumulation : {1, 4}) {
      NullPlanOptions options = seven_billion(8);
      options.config.recompute = {{config::Recompute::block, -1}};
      options.config.zero.stage = stage;
      options.accumulations = {accumulation};
      expect_packed(fmt::format("stage {}, {} micro-batches", stage, accumulation), options,
                    stage == 3 ? 1.025 : 1.005);
    }
  }
}

/// Each chunk keeps most micro-batches at another time than the others.
TEST(Scale, PipelinesWasteNoMemory) {
  using config::PipelineSchedule;
  const struct {
    const char* what;
    PipelineSchedule schedule;
    int stages;
    int chunks;
  } cases[] = {{"1f1b, 4 stages", PipelineSchedule::one_f_one_b, 4, 1},
               {"zero-bubble, 4 stages", PipelineSchedule::zero_bubble, 4, 1},
               {"interleaved, 4 stages of 2 chunks", PipelineSchedule::interleaved, 4, 2},
               {"interleaved, 2 stages of 7 chunks", PipelineSchedule::interleaved, 2, 7}};
  for (const auto& each : cases) {
    for (int stage = 0; stage <= 3; ++stage) {
      NullPlanOptions options = seven_billion(8);
      options.config.zero.stage = stage;
      options.config.pipeline_parallel_size = each.stages;
      options.config.pipeline_schedule = each.schedule;
      options.config.virtual_pipeline_size = each.chunks;
      options.accumulations = {8};
      const double most = stage == 3 ? 1.065 : stage == 2 ? 1.035 : 1.005;
      expect_packed(fmt::format("{}, ZeRO {}", each.what, stage), options, most);
    }
  }
}

TEST(Scale, TheTableAddsUpToTheArenas) {
  const Plan plan = null_plan(seven_billion(4));
  ArenaBytes total{};
  for (const MemoryRow& row : memory_table(plan)) {
    EXPECT_GT(row.bytes, 0) << row.owner;
    total[static_cast<size_t>(row.space)] += row.bytes;
  }
  EXPECT_EQ(total, plan.arenas);
}

TEST(Scale, SixteenThousandRanks) {
  const Plan plan = null_plan(seven_billion(16384));
  const int64_t parameters = plan.model.num_parameters();
  int64_t persistent = 0;
  for (const Buffer& buffer : plan.state.buffers) persistent += buffer.bytes;
  EXPECT_LT(persistent, 16 * parameters / 16384 * 2);
}

TEST(Scale, NoBufferOfTheHeadExceedsAChunk) {
  NullPlanOptions options = seven_billion(2);
  options.capacity = {16384, 4, 4096};
  const Plan plan = null_plan(options);
  const auto& program = plan.train.at(1);
  for (const Phase& phase : program.phases) {
    if (!phase.uses(Bound::loss_sums)) continue;
    // Logits, whose gradient takes their place, and the hidden states of all tokens, twice.
    const int64_t chunk_bytes = phase.chunk * 152064 * 2;
    EXPECT_LE(chunk_bytes, int64_t{128} << 20);
    const int64_t hidden_bytes = 16384 * 3584 * 2;
    EXPECT_LE(phase.frame_bytes, chunk_bytes + 3 * hidden_bytes);
    EXPECT_LT(phase.frame_bytes, 16384 * int64_t{152064} * 2 / 8);
  }
}

TEST(Scale, StoredInstructionsDoNotGrowWithTheSchedule) {
  NullPlanOptions small;
  small.model = testing::tiny_model({.layers = 2});
  small.ranks = 4;
  small.config.zero.stage = 3;
  small.accumulations = {2};
  small.evaluates = false;
  NullPlanOptions large = small;
  large.model = testing::tiny_model({.layers = 80});
  large.accumulations = {128};
  const Plan few = null_plan(small);
  const auto start = std::chrono::steady_clock::now();
  const Plan many = null_plan(large);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto in_phases = [](const Program& program) {
    size_t total = 0;
    for (const Phase& phase : program.phases) total += phase.instructions.size();
    return total;
  };
  EXPECT_LE(in_phases(many.train.at(128)), 2 * in_phases(few.train.at(2)));
  EXPECT_GT(many.train.at(128).schedule.size(), 128u * 160u);
  RecordProperty("seconds_to_plan", std::to_string(seconds.count()));
  std::printf("80 layers x 128 micro-batches: %zu entries planned in %.2f s\n",
              many.train.at(128).schedule.size(), seconds.count());
}

TEST(Scale, TrafficIsThatOfTheStage) {
  // In elements of the group sizes, per step: the least that each stage can do.
  for (int stage = 0; stage <= 3; ++stage) {
    NullPlanOptions options;
    options.model = testing::tiny_model({.layers = 6});
    options.ranks = 4;
    options.config.zero.stage = stage;
    options.config.zero.max_reuse_distance = 0;
    options.accumulations = {3};
    const Plan plan = null_plan(options);
    int64_t total = 0;
    for (const ParameterGroup& group : plan.groups.groups) total += group.size;
    int64_t gathered = 0;
    int64_t reduced = 0;
    const Program& program = plan.train.at(3);
    for (const Entry& entry : program.schedule) {
      if (entry.kind != EntryKind::transfer) continue;
      const Transfer& transfer = program.transfers[static_cast<size_t>(entry.item)];
      for (const TransferPiece& piece : transfer.pieces) {
        if (transfer.kind == comm::CommKind::all_gather) gathered += piece.count * 4;
        if (transfer.kind == comm::CommKind::reduce_scatter) reduced += piece.count * 4;
      }
    }
    int64_t head_and_embedding = 0;  // used once a micro-batch, hence gathered once
    for (const ParameterGroup& group : plan.groups.groups) {
      if (group.unit == 0 || group.unit == plan.model.num_units() - 1) {
        head_and_embedding += group.size;
      }
    }
    const int64_t blocks = total - head_and_embedding;
    EXPECT_EQ(gathered, stage < 3 ? total : 3 * (2 * blocks + head_and_embedding)) << stage;
    EXPECT_EQ(reduced, stage < 2 ? total : 3 * total) << stage;
  }
}

TEST(Scale, PrintsLikeTheIllustration) {
  NullPlanOptions options;
  options.model = testing::tiny_model({.layers = 1});
  options.ranks = 2;
  options.config.zero.stage = 3;
  const Plan plan = null_plan(options);
  const std::string text =
      print_program(plan.train.at(1), plan.model, {.expand = true, .addresses = true});
  for (const char* words : {"all_gather dp f32x", "reduce_scatter dp f32x", "optimizer",
                            "release weight_slot.block.0.0", "step_control", "per chunk",
                            "linear_weight_grad", "(transient)"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

}  // namespace
}  // namespace trireme::plan
