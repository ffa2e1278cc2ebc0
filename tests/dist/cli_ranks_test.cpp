// The ranks of a run: as processes and as threads, started by the launcher and by hand, told
// different things, sent signals.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "checkpoint/reader.h"
#include "config/parse.h"
#include "host/cpu_topology.h"
#include "support/program.h"
#include "support/rig.h"
#include "train/state_sources.h"

namespace trireme::test {
namespace {

using ops::Control;

// Processes and threads ---------------------------------------------------------------------

struct Layout {
  int ranks;
  Flags flags;
};

class SameBits : public ::testing::TestWithParam<Layout> {
 protected:
  Workplace work_;
};

/// The settings as the program itself reads them.
config::RunConfig parsed(const Flags& flags, const model::ModelConfig& model, int ranks) {
  const Words words = command("train", flags);
  config::ParseResult result = config::parse(std::span(words).subspan(1));
  config::resolve(result, {model.hidden_size, model.max_position_embeddings}, ranks);
  return result.config;
}

testing::RigResult train_on_threads(const Workplace& work, const Flags& flags, int ranks) {
  testing::RigOptions options;
  const model::ModelConfig model = model::read_model_config(work / "model");
  options.config = parsed(flags, model, ranks);
  options.model = model::build_model(model);
  options.ranks = ranks;
  options.num_threads = std::max(1, host::read_cpu_topology().usable_cores() / ranks);
  data::DatasetOptions read;
  read.vocab_size = model.vocab_size;
  read.max_seq_length = options.config.max_seq_length;
  const data::Dataset dataset = data::Dataset::load(work / "data.jsonl", read);
  options.dataset = &dataset;
  options.source = [&] {
    return std::make_unique<train::RandomSource>(model, static_cast<uint64_t>(options.config.seed));
  };
  return testing::train(options);
}

void expect_plane(checkpoint::CheckpointReader& reader, const char* plane,
                  const testing::Tensors& tensors) {
  ASSERT_FALSE(tensors.empty());
  for (const auto& [name, expected] : tensors) {
    const auto* entry = reader.find(name, plane);
    ASSERT_NE(entry, nullptr) << plane << " of " << name;
    std::vector<float> values(expected.size());
    reader.read(name, plane, entry->shape, mesh::whole(entry->shape), values.data());
    EXPECT_EQ(values, expected) << plane << " of " << name;
  }
}

TEST_P(SameBits, AsProcessesAndAsThreads) {
  const auto& [ranks, layout] = GetParam();
  const Flags flags = with(work_.flags(), with(layout, {{"gradient_accumulation_steps", "2"},
                                                        {"max_steps", "15"},
                                                        {"weight_decay", "0.1"},
                                                        {"save_strategy", "steps"}}));
  const Outcome outcome = work_.run(launched(ranks, command("train", flags)));
  ASSERT_EQ(outcome.code, 0) << outcome.text();
  const testing::RigResult threads = train_on_threads(work_, flags, ranks);

  const std::vector<Json> lines = read_metrics(work_ / "out/metrics.jsonl");
  ASSERT_EQ(lines.size(), threads.steps.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& control = threads.steps[i];
    EXPECT_EQ(lines[i].at("loss").get<double>(), train::value(control, Control::loss));
    EXPECT_EQ(lines[i].at("grad_norm").get<double>(), train::value(control, Control::grad_norm));
    EXPECT_EQ(lines[i].at("learning_rate").get<double>(),
              train::value(control, Control::learning_rate));
  }
  checkpoint::CheckpointReader reader(work_ / "out/checkpoint-15");
  expect_plane(reader, "master", threads.masters);
  expect_plane(reader, "exp_avg", threads.exp_avg);
  expect_plane(reader, "exp_avg_sq", threads.exp_avg_sq);
}
INSTANTIATE_TEST_SUITE_P(
    Ranks, SameBits,
    ::testing::Values(
        Layout{1, {{"zero_stage", "0"}}}, Layout{2, {{"zero_stage", "3"}, {"bf16", "true"}}},
        Layout{3, {{"zero_stage", "2"}}},
        Layout{3, {{"zero_stage", "2"}, {"reduce_dtype", "bfloat16"}}},
        Layout{4, {{"zero_stage", "3"}, {"shard_group_size", "2"}, {"reduce_dtype", "bfloat16"}}}));

// Times -------------------------------------------------------------------------------------

/// The host is a step ahead, and further behind the longer it waits for room in the queues: what
/// counts is when steps were done. Here each has more work than a queue holds.
TEST(Times, OfAStepAreBetweenItsEndAndTheEndOfTheOneBefore) {
  Workplace work;
  write_rows(work / "data.jsonl", 300, 1);
  const Flags flags = with(work.flags(), {{"per_device_train_batch_size", "1"},
                                          {"gradient_accumulation_steps", "48"},
                                          {"zero_stage", "3"},
                                          {"max_steps", "3"},
                                          {"debug_comm_delay_ms", "1"}});
  ASSERT_EQ(work.run(launched(2, command("train", flags))).code, 0);
  std::vector<double> seconds;
  std::istringstream lines(read_bytes(work / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    seconds.push_back(Json::parse(line).at("step_seconds"));
  }
  ASSERT_EQ(seconds.size(), 3U);
  // Every micro-batch gathers and reduces each of two blocks, one after the other.
  for (const double each : seconds) EXPECT_GE(each, 48 * 4 * 0.001);
}

// Started by hand ---------------------------------------------------------------------------

class Ranks : public ::testing::Test {
 protected:
  std::unique_ptr<Running> by_hand(int rank, int world_size, int port, const Flags& flags) {
    return work_.start(command("train", flags), rank_environment(rank, world_size, port));
  }
  Workplace work_;
};

TEST_F(Ranks, StartedByHandTrainAsUnderTheLauncher) {
  const Flags flags = with(work_.flags(), {{"zero_stage", "3"}});
  ASSERT_EQ(work_.run(launched(2, command("train", flags))).code, 0);
  const std::vector<Json> launched_lines = read_metrics(work_ / "out/metrics.jsonl");
  const std::string launched_weights = read_bytes(work_ / "out/model.safetensors");
  const int port = free_port();
  auto rank_1 = by_hand(1, 2, port, flags);
  auto rank_0 = by_hand(0, 2, port, flags);
  EXPECT_EQ(rank_0->finish(), 0) << rank_0->err();
  EXPECT_EQ(rank_1->finish(), 0) << rank_1->err();
  EXPECT_EQ(rank_1->out(), "") << "only rank 0 prints";
  EXPECT_EQ(read_metrics(work_ / "out/metrics.jsonl"), launched_lines);
  EXPECT_TRUE(read_bytes(work_ / "out/model.safetensors") == launched_weights);
  work_.expect_nothing_left();
}

TEST_F(Ranks, TwoJobsAtOnceDoNotMeet) {
  std::vector<std::unique_ptr<Running>> all;
  for (const char* job : {"one", "two"}) {
    const int port = free_port();
    const Flags flags = with(work_.flags(), {{"output_dir", work_ / job}, {"zero_stage", "2"}});
    for (const int rank : {0, 1}) all.push_back(by_hand(rank, 2, port, flags));
  }
  for (const auto& running : all) EXPECT_EQ(running->finish(), 0) << running->err();
  EXPECT_TRUE(read_bytes(work_ / "one/model.safetensors") ==
              read_bytes(work_ / "two/model.safetensors"));
  work_.expect_nothing_left();
}

TEST_F(Ranks, WrongVariablesAreNamed) {
  const struct {
    Variables variables;
    std::string sentence;
  } cases[] = {
      {{{"WORLD_SIZE", "2"}}, "RANK = unset: set it, for WORLD_SIZE is set"},
      {{{"RANK", "2"}, {"LOCAL_RANK", "2"}, {"WORLD_SIZE", "2"}},
       "RANK = 2: must be below WORLD_SIZE = 2"},
      {{{"RANK", "x"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}},
       "RANK = x: must be a number from 0"},
      {{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR = unset"},
      {{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}},
       "MASTER_PORT = unset"},
      {{{"RANK", "0"},
        {"LOCAL_RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "70000"}},
       "MASTER_PORT = 70000: must be a number from 1 to 65535"},
  };
  for (const auto& [variables, sentence] : cases) {
    const Outcome outcome = work_.run(command("train", work_.flags()), variables);
    EXPECT_EQ(outcome.code, 2) << outcome.text();
    EXPECT_TRUE(has(outcome.err, sentence)) << outcome.err;
    EXPECT_EQ(count(outcome.err, "\n"), 1) << outcome.err;
  }
}

TEST_F(Ranks, APortInUseIsNamed) {
  const store::Fd taken = store::listen_on({"127.0.0.1", 0}, 1);
  const int port = store::bound_port(taken);
  auto rank_0 = by_hand(0, 2, port, work_.flags());
  EXPECT_EQ(rank_0->finish(), 2);
  EXPECT_TRUE(has(rank_0->err(), fmt::format("MASTER_PORT = {}", port))) << rank_0->err();
}

// Told different things ---------------------------------------------------------------------

/// Rank 1 gets `flags` as well. Both must refuse, before step 0, with the same sentence.
TEST_F(Ranks, ToldDifferentThingsRefuseToStart) {
  write_rows(work_ / "other.jsonl", 50, 9);
  write_model(work_ / "deeper", {.layers = 3});
  const struct {
    Flags flags;
    std::string difference;
  } cases[] = {
      {{{"learning_rate", "0.02"}}, "learning_rate is 0.02, rank 0 has 0.01"},
      {{{"data_path", work_ / "other.jsonl"}}, "the hash of data_path's samples is "},
      {{{"model_name_or_path", work_ / "deeper"}}, "it planned another program for stage 0, tensor rank 0"},
      {{{"resume_from_checkpoint", "true"}}, "resume_from_checkpoint is \"true\""},
      {{{"max_steps", "5"}, {"seed", "1"}}, "seed is 1, rank 0 has 42"},
  };
  for (const auto& [flags, difference] : cases) {
    const int port = free_port();
    auto rank_0 = by_hand(0, 2, port, work_.flags());
    auto rank_1 = by_hand(1, 2, port, with(work_.flags(), flags));
    EXPECT_EQ(rank_0->finish(), 2) << rank_0->err();
    EXPECT_EQ(rank_1->finish(), 2) << rank_1->err();
    EXPECT_EQ(rank_0->err(), rank_1->err());
    EXPECT_TRUE(has(rank_0->err(), "trireme: rank 1 is not like rank 0: ")) << rank_0->err();
    EXPECT_TRUE(has(rank_0->err(), difference)) << rank_0->err();
    EXPECT_EQ(count(rank_0->err(), "\n"), 1);
    EXPECT_FALSE(std::filesystem::exists(work_ / "out/metrics.jsonl"));
  }
}

TEST_F(Ranks, DifferentPathsToTheSameFilesAreFine) {
  std::filesystem::copy(work_ / "data.jsonl", work_ / "copy.jsonl");
  const int port = free_port();
  auto rank_0 = by_hand(0, 2, port, work_.flags());
  auto rank_1 = by_hand(1, 2, port, with(work_.flags(), {{"data_path", work_ / "copy.jsonl"}}));
  EXPECT_EQ(rank_0->finish(), 0) << rank_0->err();
  EXPECT_EQ(rank_1->finish(), 0) << rank_1->err();
}

TEST_F(Ranks, OneLostRankEndsTheOthers) {
  const Flags flags = with(work_.flags(), {{"max_steps", "1000000"}, {"zero_stage", "3"}});
  const int port = free_port();
  auto rank_1 = by_hand(1, 2, port, flags);
  auto rank_0 = by_hand(0, 2, port, flags);
  rank_0->line_with("Planned memory");
  rank_1->process().signal(SIGKILL);
  EXPECT_EQ(rank_0->finish(), 1) << rank_0->err();
  EXPECT_TRUE(has(rank_0->err(), "1")) << rank_0->err();
  EXPECT_EQ(count(rank_0->err(), "\n"), 1) << rank_0->err();
  rank_1->finish();
  work_.expect_nothing_left();
}

// Signals -----------------------------------------------------------------------------------

TEST_F(Ranks, ASignalEndsAPlainRun) {
  for (const int number : {SIGTERM, SIGINT}) {
    auto run = work_.start(command("train", with(work_.flags(), {{"max_steps", "1000000"}})));
    run->line_with("Planned memory");
    run->process().signal(number);
    EXPECT_EQ(run->finish(), 128 + number);
    work_.expect_nothing_left();
  }
}

TEST_F(Ranks, ASignalRightAfterTheStartEndsItToo) {
  // The program starts itself a second time, for OpenMP: whenever the signal comes, it is heard.
  for (const int delay : {0, 1, 2, 4, 8, 16, 32}) {
    auto run = work_.start(command("train", with(work_.flags(), {{"max_steps", "1000000"}})));
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    run->process().signal(SIGTERM);
    EXPECT_EQ(run->finish(), 128 + SIGTERM) << "after " << delay << " ms";
  }
}

TEST_F(Ranks, CtrlCEndsALaunchedRunWith130) {
  auto run = work_.start(launched(
      2, command("train", with(work_.flags(), {{"max_steps", "1000000"}, {"zero_stage", "3"}}))));
  run->line_with("Planned memory");
  run->process().signal(SIGINT);
  EXPECT_EQ(run->finish(), 128 + SIGINT) << run->err();
  work_.expect_nothing_left();
}

}  // namespace
}  // namespace trireme::test
