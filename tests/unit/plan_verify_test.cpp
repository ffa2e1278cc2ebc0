// Every rule of the verifier has a program that breaks it; every wait of a real program is needed.
#include <gtest/gtest.h>

#include "plan/emitter.h"
#include "plan/order.h"
#include "plan/placement.h"
#include "plan/verify.h"
#include "support/null_plan.h"
#include "support/rig.h"

namespace trireme::plan {
namespace {

using testing::null_plan;
using testing::NullPlanOptions;

/// producer (compute) -> transfer (comm) -> consumer (compute), over two transient buffers.
Program small_program() {
  Program program;
  program.name = "small";
  Emitter emitter(program, true);
  const int32_t a = emitter.add_buffer("a", Owner::activations, Space::device, 1024);
  const int32_t b = emitter.add_buffer("b", Owner::activations, Space::device, 1024);
  Entry compute;
  compute.kind = EntryKind::ops;
  compute.count = 0;
  compute.what = "make";
  emitter.emit(compute, {acquired(writes(a))});
  program.transfers.push_back({comm::CommKind::all_gather, GroupAxis::shard, DType::f32, {}, {}});
  Entry transfer;
  transfer.kind = EntryKind::transfer;
  transfer.stream = StreamKind::comm_dp;
  transfer.item = 0;
  transfer.what = "all_gather";
  emitter.emit(transfer, {released(reads(a)), acquired(writes(b))});
  compute.what = "use";
  emitter.emit(compute, {released(reads(b))});
  return program;
}

class VerifierRules : public ::testing::Test {
 protected:
  VerifierRules() : program_(small_program()), arenas_(place_buffers({&program_})) {}

  void expect_fault(const std::string& words) {
    const auto fault = find_fault(program_, arenas_);
    ASSERT_TRUE(fault.has_value()) << "accepted; expected: " << words;
    EXPECT_NE(fault->find(words), std::string::npos) << *fault;
  }

  Program program_;
  ArenaBytes arenas_;
};

TEST_F(VerifierRules, AcceptsTheProgram) { EXPECT_EQ(find_fault(program_, arenas_), std::nullopt); }

TEST_F(VerifierRules, AReadWaitsForTheWrite) {
  program_.schedule[1].waits.clear();
  expect_fault("#001 all_gather: reads a without waiting for #000 make");
}

TEST_F(VerifierRules, AWaitNamesAnEarlierEntry) {
  program_.schedule[1].waits = {2};
  expect_fault("#001 all_gather: waits for entry 2");
}

TEST_F(VerifierRules, AWaitNamesAnotherStream) {
  program_.schedule[2].waits.push_back(0);
  expect_fault("#002 use: waits for #000 make of its own stream");
}

TEST_F(VerifierRules, NothingIsReadBeforeItIsWritten) {
  program_.schedule[0].accesses[0].access = Access::update;
  expect_fault("#000 make: reads a, which nobody wrote");
}

TEST_F(VerifierRules, NothingIsTouchedAfterItsRelease) {
  program_.schedule[0].accesses[0].release = true;
  expect_fault("#001 all_gather: touches a outside its life");
}

TEST_F(VerifierRules, NothingIsAcquiredTwice) {
  program_.schedule[1].accesses[0].acquire = true;
  expect_fault("#001 all_gather: acquires a twice");
}

TEST_F(VerifierRules, EverythingIsReleased) {
  program_.schedule[2].accesses[0].release = false;
  expect_fault("b is acquired but never released");
}

TEST_F(VerifierRules, AWriteWaitsForReaders) {
  Entry writer;
  writer.kind = EntryKind::ops;
  writer.count = 0;
  writer.stream = StreamKind::copy_in;
  writer.what = "overwrite";
  writer.waits = {1};
  writer.accesses = {updates(1)};
  program_.schedule[2].accesses[0].release = false;
  program_.schedule.push_back(writer);
  expect_fault("#003 overwrite: writes b while #002 use may still read it");
}

TEST_F(VerifierRules, AReleaseComesLast) {
  Entry reader;
  reader.kind = EntryKind::ops;
  reader.count = 0;
  reader.stream = StreamKind::copy_out;
  reader.what = "peek";
  reader.waits = {1};
  reader.accesses = {reads(1)};
  program_.schedule.insert(program_.schedule.begin() + 2, reader);
  expect_fault("#003 use: releases b before #002 peek is done with it");
}

TEST_F(VerifierRules, PersistentBuffersHaveNoLife) {
  program_.buffers[0].persistent = true;
  expect_fault("#000 make: acquires or releases a, which is persistent");
}

TEST_F(VerifierRules, LiveBuffersShareNoMemory) {
  program_.buffers[1].offset = program_.buffers[0].offset;
  expect_fault("#001 all_gather: a and b share memory while both live");
}

TEST_F(VerifierRules, BuffersLieInTheArena) {
  program_.buffers[1].offset = arenas_[0];
  expect_fault("b lies outside its arena");
}

TEST_F(VerifierRules, PhasesReadWhatTheyWrote) {
  Phase phase;
  phase.name = "forward";
  Instruction add;
  add.op = ops::OpKind::add;
  Operand out{Bound::frame,       0,          0,     64,    model::Dim::tokens,
              model::Dim::hidden, DType::f32, false, false, "y"};
  Operand in = out;
  in.offset = 256;
  in.name = "x";
  add.args = {out, in, Operand{}};
  phase.instructions = {add};
  program_.phases = {phase};
  expect_fault("phase forward instruction 0 add: reads x, which was not written");
  Instruction make;
  make.op = ops::OpKind::zero;
  make.args = {in};
  Instruction scratch = make;
  scratch.args[0].offset = 512;
  scratch.workspace_offset = 256;
  scratch.workspace_bytes = 8;
  program_.phases[0].instructions = {make, scratch, add};
  expect_fault(
      "phase forward instruction 2 add: reads x, which was not written or was overwritten");
  program_.phases[0].instructions = {make, add};
  EXPECT_EQ(find_fault(program_, arenas_), std::nullopt);
}

// Worlds -------------------------------------------------------------------------------------

Members everyone(int ranks) {
  return [ranks](int, GroupAxis) {
    std::vector<int> all(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) all[static_cast<size_t>(r)] = r;
    return all;
  };
}

NullPlanOptions zero3(int64_t ranks, int64_t rank) {
  NullPlanOptions options;
  options.model = testing::tiny_model({.layers = 4, .tied = true});
  options.ranks = ranks;
  options.rank = rank;
  options.config.zero.stage = 3;
  options.accumulations = {2};
  return options;
}

TEST(VerifierWorld, RealProgramsMeet) {
  const Plan a = null_plan(zero3(2, 0));
  const Plan b = null_plan(zero3(2, 1));
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(find_world_fault({&a.train.at(2), &b.train.at(2)}, everyone(2)), std::nullopt);
}

TEST(VerifierWorld, TwoCollectivesSwappedOnOneRankAreRejected) {
  const Plan a = null_plan(zero3(2, 0));
  Plan b = null_plan(zero3(2, 1));
  auto& schedule = b.train.at(2).schedule;
  std::vector<size_t> gathers;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].kind == EntryKind::transfer) gathers.push_back(i);
  }
  std::swap(schedule[gathers[0]].item, schedule[gathers[1]].item);
  const auto fault = find_world_fault({&a.train.at(2), &b.train.at(2)}, everyone(2));
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->find("differs in kind, micro-batch, type or size"), std::string::npos) << *fault;
}

TEST(VerifierWorld, ACycleOverRanksIsADeadlock) {
  // Rank 0 meets on stream A before B, rank 1 the other way round, each waiting in between.
  const auto program = [](bool swapped) {
    Program p;
    p.name = "cycle";
    p.transfers.push_back({comm::CommKind::all_gather, GroupAxis::shard, DType::f32, {}, {}});
    Entry first;
    first.kind = EntryKind::transfer;
    first.item = 0;
    first.what = "all_gather";
    first.stream = swapped ? StreamKind::comm_tp : StreamKind::comm_dp;
    Entry second = first;
    second.stream = swapped ? StreamKind::comm_dp : StreamKind::comm_tp;
    second.waits = {0};
    p.schedule = {first, second};
    return p;
  };
  const Program a = program(false);
  const Program b = program(true);
  EXPECT_EQ(find_world_fault({&a, &a}, everyone(2)), std::nullopt);
  const auto fault = find_world_fault({&a, &b}, everyone(2));
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->find("deadlock: rank 0 waits for ever at #000"), std::string::npos) << *fault;
}

/// Removing a wait either breaks a rule, by number, or leaves the order of all entries as it was.
TEST(VerifierWaits, EachIsNeededOrRedundant) {
  for (int stage : {1, 2, 3}) {
    NullPlanOptions options = zero3(3, 1);
    options.config.zero.stage = stage;
    const Plan plan = null_plan(options);
    Program program = plan.train.at(2);
    const Order order = order_of(program.schedule);
    int rejected = 0;
    int redundant = 0;
    for (size_t e = 0; e < program.schedule.size(); ++e) {
      const auto waits = program.schedule[e].waits;
      for (size_t w = 0; w < waits.size(); ++w) {
        auto& changed = program.schedule[e].waits;
        changed.erase(changed.begin() + static_cast<int64_t>(w));
        const auto fault = find_fault(program, plan.arenas);
        if (fault) {
          ++rejected;
          EXPECT_NE(fault->find('#'), std::string::npos) << *fault;
        } else {
          const bool paces = program.schedule[e].what == "all_gather";
          const bool same = order_of(program.schedule).clock(static_cast<int32_t>(e)) ==
                            order.clock(static_cast<int32_t>(e));
          // A gather also waits so as not to run further ahead than it was told.
          EXPECT_TRUE(same || paces)
              << describe(program, static_cast<int32_t>(e)) << " wait " << waits[w];
          ++redundant;
        }
        changed = waits;
      }
    }
    EXPECT_GT(rejected, 20);
    EXPECT_LE(redundant, static_cast<int>(program.schedule.size()) / 3);
  }
}

TEST(Lowering, GathersFarAheadWhatStaysGathered) {
  // Backward of the only block finds the embedding's weights gathered, and must find them so still
  // when it runs, although its pool has one slot.
  testing::NullPlanOptions options;
  options.config.zero.stage = 3;
  options.config.zero.prefetch_bucket_size = int64_t{1} << 30;
  options.ranks = 3;
  options.accumulations = {2};
  for (const bool tied : {false, true}) {
    options.model = testing::tiny_model({.layers = 1, .tied = tied});
    EXPECT_NO_THROW(testing::null_plan(options));
  }
}

}  // namespace
}  // namespace trireme::plan
