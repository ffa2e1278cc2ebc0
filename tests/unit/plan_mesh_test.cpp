// Programs of tensor- and pipeline-parallel worlds: they meet, need their waits, and move the bytes
// that the techniques are known to move.
#include <gtest/gtest.h>

#include <map>

#include "plan/order.h"
#include "plan/verify.h"
#include "plan/verify_stages.h"
#include "support/null_plan.h"
#include "support/rig.h"

namespace trireme::plan {
namespace {

using comm::CommKind;
using config::PipelineSchedule;
using testing::null_plan;
using testing::NullPlanOptions;

struct World {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int stage = 0;
  int accumulation = 2;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t chunks = 1;
  bool tied = true;
  int64_t kv_heads = 2;
};

NullPlanOptions options_of(const World& world, int64_t rank) {
  NullPlanOptions options;
  options.model = testing::tiny_model(
      {.layers = 6, .heads = 4, .kv_heads = world.kv_heads, .vocab = 509, .tied = world.tied});
  options.ranks = world.tp * world.pp * world.dp;
  options.rank = rank;
  options.accumulations = {world.accumulation};
  options.config.zero.stage = world.stage;
  options.config.tensor_parallel_size = world.tp;
  options.config.pipeline_parallel_size = world.pp;
  options.config.pipeline_schedule = world.schedule;
  options.config.virtual_pipeline_size = world.chunks;
  return options;
}

std::vector<Plan> plans_of(const World& world) {
  std::vector<Plan> plans;
  for (int64_t r = 0; r < world.tp * world.pp * world.dp; ++r) {
    plans.push_back(null_plan(options_of(world, r)));
  }
  return plans;
}

template <typename Pick>
std::optional<std::string> world_fault(const std::vector<Plan>& plans, const Pick& pick) {
  std::vector<const Program*> programs;
  for (const Plan& plan : plans) programs.push_back(&pick(plan));
  return find_world_fault(programs, [&](int rank, GroupAxis axis) {
    return members(plans[static_cast<size_t>(rank)].mesh, axis);
  });
}

std::vector<World> worlds() {
  std::vector<World> all;
  for (int64_t pp : {2, 4}) {
    for (int accumulation : {1, 2, 5, 8}) {
      all.push_back({.pp = pp, .accumulation = accumulation});
      all.push_back({.pp = pp, .accumulation = accumulation,
                     .schedule = PipelineSchedule::zero_bubble});
      all.push_back({.pp = pp, .accumulation = accumulation,
                     .schedule = PipelineSchedule::interleaved, .chunks = 2});
    }
  }
  for (int accumulation : {4, 7, 13}) {  // no multiples of the stages
    all.push_back({.pp = 3, .accumulation = accumulation,
                   .schedule = PipelineSchedule::zero_bubble});
    all.push_back({.pp = 2, .accumulation = accumulation,
                   .schedule = PipelineSchedule::interleaved, .chunks = 4});
  }
  all.push_back({.tp = 4, .dp = 2, .stage = 3});
  all.push_back({.tp = 4, .dp = 2, .stage = 1, .kv_heads = 1});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .stage = 3});
  all.push_back({.tp = 2, .pp = 2, .dp = 2, .stage = 2, .accumulation = 5,
                 .schedule = PipelineSchedule::zero_bubble});
  return all;
}

TEST(MeshPrograms, MeetWithoutDeadlock) {
  for (const World& world : worlds()) {
    SCOPED_TRACE(fmt::format("tp {} pp {} dp {} batches {} schedule {}", world.tp, world.pp,
                             world.dp, world.accumulation, static_cast<int>(world.schedule)));
    const std::vector<Plan> plans = plans_of(world);
    const auto train = [&](const Plan& plan) -> const Program& {
      return plan.train.at(world.accumulation);
    };
    EXPECT_EQ(world_fault(plans, train), std::nullopt);
    EXPECT_EQ(world_fault(plans, [](const Plan& p) -> const Program& { return p.evaluate; }),
              std::nullopt);
    EXPECT_EQ(world_fault(plans, [](const Plan& p) -> const Program& { return p.flush; }),
              std::nullopt);
    EXPECT_EQ(world_fault(plans, [](const Plan& p) -> const Program& { return p.load; }),
              std::nullopt);
    for (const Plan& plan : plans) {  // data ranks agree on their programs
      for (const Plan& other : plans) {
        if (plan.mesh.at.tp != other.mesh.at.tp || plan.mesh.at.pp != other.mesh.at.pp) continue;
        EXPECT_EQ(plan.hash, other.hash);
      }
    }
  }
}

/// One plan a stage stands for the world.
TEST(MeshPrograms, StagesStandForTheWorld) {
  for (const World& world : worlds()) {
    if (world.pp == 1) continue;
    std::vector<Plan> stages;
    for (const Plan& plan : plans_of(world)) {
      if (plan.mesh.at.tp == 0 && plan.mesh.at.dp == 0) stages.push_back(plan);
    }
    ASSERT_EQ(static_cast<int64_t>(stages.size()), world.pp);
    EXPECT_EQ(find_stage_fault(stages), std::nullopt);
    auto& schedule = stages[1].train.at(world.accumulation).schedule;
    for (size_t i = 0; i < schedule.size(); ++i) {
      if (schedule[i].stream != StreamKind::recv_prev) continue;
      schedule[i].waits.push_back(static_cast<int32_t>(schedule.size()) - 1);  // its own end
      break;
    }
    const auto fault = find_stage_fault(stages);
    ASSERT_TRUE(fault.has_value());
    EXPECT_NE(fault->find("deadlock"), std::string::npos) << *fault;
  }
}

TEST(MeshPrograms, TooManyVirtualStagesNameTheirSetting) {
  NullPlanOptions options = options_of({.pp = 2, .schedule = PipelineSchedule::interleaved,
                                        .chunks = 5}, 0);
  try {
    null_plan(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("virtual_pipeline_size"), std::string::npos)
        << error.what();
  }
}

TEST(MeshPrograms, AReceiveOutOfOrderIsADeadlock) {
  std::vector<Plan> plans = plans_of({.pp = 2, .accumulation = 5});
  auto& schedule = plans[1].train.at(5).schedule;
  std::vector<size_t> receives;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].stream == StreamKind::recv_prev) receives.push_back(i);
  }
  std::swap(schedule[receives[0]].micro_batch, schedule[receives[1]].micro_batch);
  const auto fault =
      world_fault(plans, [](const Plan& plan) -> const Program& { return plan.train.at(5); });
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->find("differs in kind, micro-batch, type or size"), std::string::npos) << *fault;
}

/// Removing a wait either breaks a rule, by number, or leaves the order of all entries as it was.
TEST(MeshPrograms, EachWaitIsNeededOrRedundant) {
  const World world{.tp = 2, .pp = 2, .dp = 2, .stage = 3, .accumulation = 3};
  for (int64_t rank : {0, 7}) {
    const Plan plan = null_plan(options_of(world, rank));
    Program program = plan.train.at(3);
    const Order order = order_of(program.schedule);
    int rejected = 0;
    for (size_t e = 0; e < program.schedule.size(); ++e) {
      auto& waits = program.schedule[e].waits;
      const auto kept = waits;
      for (size_t w = 0; w < kept.size(); ++w) {
        waits.erase(waits.begin() + static_cast<int64_t>(w));
        const auto fault = find_fault(program, plan.arenas);
        rejected += fault ? 1 : 0;
        const bool paces = program.schedule[e].what == "all_gather";
        const auto entry = static_cast<int32_t>(e);
        EXPECT_TRUE(fault || paces ||
                    order_of(program.schedule).clock(entry) == order.clock(entry))
            << describe(program, entry) << " wait " << kept[w];
        waits = kept;
      }
    }
    EXPECT_GT(rejected, 40);
  }
}

TEST(MeshPrograms, EachWaitInsideAPhaseIsNeeded) {
  const Plan plan = null_plan(options_of({.tp = 2}, 0));
  int removed = 0;
  for (Phase phase : plan.train.at(2).phases) {
    ASSERT_EQ(find_fault(phase), std::nullopt);
    for (Instruction& instruction : phase.instructions) {
      if (!instruction.wait) continue;
      const auto kept = std::exchange(instruction.wait, std::nullopt);
      EXPECT_TRUE(find_fault(phase).has_value()) << phase.name;
      instruction.wait = kept;
      ++removed;
    }
    if (!phase.last_wait) continue;
    const auto kept = std::exchange(phase.last_wait, std::nullopt);
    EXPECT_TRUE(find_fault(phase).has_value()) << phase.name;
    phase.last_wait = kept;
    ++removed;
  }
  EXPECT_GT(removed, 20);
}

// What travels -------------------------------------------------------------------------------

struct Traffic {
  int64_t calls = 0;
  int64_t elements = 0;  // as comm::CommPiece counts them
  bool operator==(const Traffic&) const = default;
};
using Travelled = std::map<std::pair<GroupAxis, CommKind>, Traffic>;

/// Transfers of a program for micro-batches of `extent`, those inside phases included.
Travelled travelled(const Plan& plan, const Program& program, const ops::Extent& extent) {
  Travelled found;
  const model::Dims& dims = plan.model.dims;
  for (const Entry& entry : program.schedule) {
    if (entry.kind == EntryKind::transfer) {
      const Transfer& transfer = program.transfers[static_cast<size_t>(entry.item)];
      Traffic& traffic = found[{transfer.axis, transfer.kind}];
      ++traffic.calls;
      const int64_t rows =
          transfer.per_row ? dims.at(model::Dim::sequence, extent.tokens) : int64_t{1};
      for (const TransferPiece& piece : transfer.pieces) traffic.elements += piece.count * rows;
    }
    if (entry.kind != EntryKind::phase) continue;
    for (const Instruction& i : program.phases[static_cast<size_t>(entry.item)].instructions) {
      if (!i.transfer) continue;
      const bool gathers = *i.transfer == CommKind::all_gather;
      const Operand& share = i.args[gathers ? 1 : 0];
      Traffic& traffic = found[{GroupAxis::tensor, *i.transfer}];
      ++traffic.calls;
      traffic.elements += dims.at(share.rows, extent.tokens) * dims.at(share.cols, extent.tokens);
    }
  }
  return found;
}

/// The table of tensor parallelism with sequence parallelism: two gathers and two reduce-scatters a
/// block forward; backward two of each for the gradients, and two gathers of inputs again.
TEST(MeshPrograms, MoveWhatIsKnown) {
  const World world{.tp = 2, .pp = 2, .dp = 2, .stage = 3, .accumulation = 2, .tied = false};
  for (int64_t rank = 0; rank < 8; ++rank) {
    const NullPlanOptions options = options_of(world, rank);
    const Plan plan = null_plan(options);
    const Travelled moved = travelled(plan, plan.train.at(2), options.capacity);
    const int64_t batches = world.accumulation;
    const int64_t share = options.capacity.tokens / world.tp * plan.model.dims[model::Dim::hidden];
    const bool first = plan.mesh.first_stage();
    const auto units = static_cast<int64_t>(plan.pipeline.own_units().size());
    const int64_t blocks = units - 1;  // beside the embedding, or the head

    // The embedding leaves once and its gradient enters; the head enters, and its gradient leaves.
    const int64_t gathers = batches * (6 * blocks + 1);
    const int64_t scatters = batches * (4 * blocks + 1);
    const int64_t statistics = first ? 0 : batches * options.capacity.tokens * 3;
    EXPECT_EQ(moved.at({GroupAxis::tensor, CommKind::all_gather}),
              (Traffic{gathers + (first ? 0 : batches), gathers * share + statistics}));
    EXPECT_EQ(moved.at({GroupAxis::tensor, CommKind::reduce_scatter}),
              (Traffic{scatters, scatters * share}));

    // Hidden states go forward and their gradients come back, once a micro-batch.
    const Traffic passed{batches, batches * share};
    EXPECT_EQ(moved.at({first ? GroupAxis::to_next : GroupAxis::to_previous, CommKind::send}),
              passed);
    EXPECT_EQ(moved.at({first ? GroupAxis::from_next : GroupAxis::from_previous, CommKind::recv}),
              passed);

    // Norm gains: each tensor rank saw its part of the sequence. Summed once, on the owner's slice.
    int64_t replicated = 0;
    int64_t slices = 0;
    for (const ParameterGroup& group : plan.groups.groups) {
      slices += group.slice;
      if (group.key.tensor_sum) replicated += group.slice;
    }
    EXPECT_EQ(moved.at({GroupAxis::tensor, CommKind::all_reduce}), (Traffic{1, replicated}));
    // ZeRO-3: every group is reduced once a micro-batch, and gathered at most twice.
    EXPECT_EQ(moved.at({GroupAxis::shard, CommKind::reduce_scatter}),
              (Traffic{batches * units, batches * slices}));
    const Traffic gathered = moved.at({GroupAxis::shard, CommKind::all_gather});
    EXPECT_GE(gathered.elements, slices);
    EXPECT_LE(gathered.elements, 2 * batches * slices);
    EXPECT_EQ(moved.at({GroupAxis::world, CommKind::all_reduce}).calls, 1);
  }
}

}  // namespace
}  // namespace trireme::plan
