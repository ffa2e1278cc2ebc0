// Gradients that travel as bf16 between data ranks: in which transfers, how many bytes they are,
// and what they are staged in.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "base/math.h"
#include "cuda/comm_sizing.h"
#include "plan/print.h"
#include "plan/verify.h"
#include "support/null_plan.h"
#include "train/tiny.h"

namespace trireme::plan {
namespace {

using comm::CommKind;
using config::Precision;
using testing::null_plan;
using testing::NullPlanOptions;

NullPlanOptions options_of(int64_t ranks, int stage, Precision reduce) {
  NullPlanOptions options;
  options.model =
      train::tiny_model({.layers = 4, .heads = 4, .kv_heads = 1, .head_dim = 8, .tied = true});
  options.ranks = ranks;
  options.accumulations = {2};
  options.config.zero.stage = stage;
  options.config.reduce_dtype = reduce;
  return options;
}

/// Bytes that the ranks of a group send in a step, by axis and kind.
using Bytes = std::map<std::pair<GroupAxis, CommKind>, int64_t>;

Bytes bytes_of(const Plan& plan) {
  Bytes bytes;
  const Program& program = plan.train.at(2);
  for (const Entry& entry : program.schedule) {
    if (entry.kind != EntryKind::transfer) continue;
    const Transfer& transfer = program.transfers[static_cast<size_t>(entry.item)];
    const int64_t size = group_size(plan.mesh, transfer.axis);
    for (const TransferPiece& piece : transfer.pieces) {
      const int64_t whole = size_of(transfer.dtype);
      const int64_t raw = size_of(transfer.wire.value_or(transfer.dtype));
      int64_t each = piece.count * whole;
      if (transfer.kind == CommKind::reduce_scatter) each = size * piece.count * raw;
      if (transfer.kind == CommKind::all_reduce) each = piece.count * (raw + whole);
      bytes[{transfer.axis, transfer.kind}] += (size - 1) * each;
    }
  }
  return bytes;
}

TEST(ReduceDtype, HalvesTheBytesOfReductionsOverDataRanks) {
  for (int stage = 0; stage <= 3; ++stage) {
    Bytes wide = bytes_of(null_plan(options_of(4, stage, Precision::float32)));
    const Bytes narrow = bytes_of(null_plan(options_of(4, stage, Precision::bfloat16)));
    int64_t& reduced = wide.at({GroupAxis::shard, CommKind::reduce_scatter});
    EXPECT_GT(reduced, 0);
    reduced /= 2;
    EXPECT_EQ(narrow, wide) << "stage " << stage;
  }
}

/// The first half of the sum over copies as well; everything else stays as it is.
TEST(ReduceDtype, LeavesOtherSumsAlone) {
  for (const int64_t group : {1, 2}) {
    const auto plan_of = [&](Precision reduce) {
      NullPlanOptions options = options_of(16, 2, reduce);
      options.config.tensor_parallel_size = 2;
      options.config.pipeline_parallel_size = 2;
      options.config.shard_group_size = group;
      return null_plan(options);
    };
    Bytes wide = bytes_of(plan_of(Precision::float32));
    for (const GroupAxis axis : {GroupAxis::tensor, GroupAxis::kv_replicas, GroupAxis::tied_ends}) {
      EXPECT_TRUE(wide.contains({axis, CommKind::all_reduce})) << name_of(axis);
    }
    if (group > 1) wide.at({GroupAxis::shard, CommKind::reduce_scatter}) /= 2;
    int64_t& copies = wide.at({GroupAxis::replica, CommKind::all_reduce});
    copies = copies / 4 * 3;
    EXPECT_EQ(bytes_of(plan_of(Precision::bfloat16)), wide);
  }
}

TEST(ReduceDtype, ChangesNothingForOneDataRank) {
  for (const int64_t ranks : {1, 2}) {
    const auto text_of = [&](Precision reduce) {
      NullPlanOptions options = options_of(ranks, 0, reduce);
      options.config.pipeline_parallel_size = ranks;
      const Plan plan = null_plan(options);
      return print_program(plan.train.at(2), plan.model, {.addresses = true});
    };
    EXPECT_EQ(text_of(Precision::bfloat16), text_of(Precision::float32));
  }
}

/// Bytes that a step's transfers are staged in on GPUs.
int64_t staging_of(NullPlanOptions options) {
  const cuda::CommSizing sizing;
  options.comm_sizing = &sizing;
  const Plan plan = null_plan(options);
  int64_t bytes = 0;
  for (const Buffer& buffer : plan.train.at(2).buffers) {
    if (buffer.owner == Owner::staging) bytes += buffer.bytes;
  }
  return bytes;
}

TEST(ReduceDtype, StagesTheLargestReductionOnGpus) {
  EXPECT_EQ(staging_of(options_of(4, 2, Precision::float32)), 0);
  int64_t largest = 0;  // elements of a unit's slices
  const Plan plan = null_plan(options_of(4, 2, Precision::bfloat16));
  for (const Transfer& transfer : plan.train.at(2).transfers) {
    if (!transfer.wire) continue;
    int64_t elements = 0;
    for (const TransferPiece& piece : transfer.pieces) elements += piece.count;
    largest = std::max(largest, elements);
  }
  EXPECT_GT(largest, 1000);
  NullPlanOptions options = options_of(4, 2, Precision::bfloat16);
  EXPECT_EQ(staging_of(options), 2 * 3 * largest * 2);  // to and from three peers, 2 bytes each
  options.config.zero.reduce_bucket_size = 4 * kSliceAlignment;
  EXPECT_EQ(staging_of(options), 2 * 3 * kSliceAlignment * 2);
}

/// Of a model whose step is what takes most memory: the staging is what the plan has more, and a
/// row.
TEST(ReduceDtype, ThePlanGrowsByTheStaging) {
  const cuda::CommSizing sizing;
  const auto plan_of = [&](Precision reduce) {
    NullPlanOptions options = options_of(8, 2, reduce);
    options.model = model::build_model(testing::qwen2_7b());
    options.capacity = {4096, 1, 4096};
    options.evaluates = false;
    options.comm_sizing = &sizing;
    return null_plan(options);
  };
  const auto staged = [](const Plan& plan) {
    int64_t bytes = 0;
    for (const MemoryRow& row : memory_table(plan)) {
      if (row.owner == "staging" && row.space == Space::device) bytes += row.bytes;
    }
    return bytes;
  };
  const Plan wide = plan_of(Precision::float32);
  const Plan narrow = plan_of(Precision::bfloat16);
  EXPECT_EQ(staged(wide), 0);
  EXPECT_GT(staged(narrow), cuda::kStagedBytes / 2);
  EXPECT_LE(staged(narrow), cuda::kStagedBytes);
  const auto device = static_cast<size_t>(Space::device);
  EXPECT_EQ(narrow.arenas[device] - wide.arenas[device], round_up(staged(narrow), 256));
}

TEST(ReduceDtype, RanksThatDisagreeAreFound) {
  std::vector<Plan> plans;
  for (const Precision reduce : {Precision::float32, Precision::bfloat16}) {
    NullPlanOptions options = options_of(2, 2, reduce);
    options.rank = std::ssize(plans);
    plans.push_back(null_plan(options));
  }
  EXPECT_NE(plans[0].hash, plans[1].hash);
  const auto fault = find_world_fault({&plans[0].train.at(2), &plans[1].train.at(2)},
                                      [&](int rank, GroupAxis axis) {
                                        return members(plans[static_cast<size_t>(rank)].mesh, axis);
                                      });
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->find("reduce_scatter"), std::string::npos) << *fault;
  const Plan& narrow = plans[1];
  EXPECT_NE(print_program(narrow.train.at(2), narrow.model, {}).find(" as bf16 set"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::plan
