// Ranks started by the launchers that people have: the real torchrun, mpirun and srun. A launcher
// that is not installed fails the test (tools/setup brings them).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/program.h"
#include "support/source_folder.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

class Foreign : public ::testing::Test {
 protected:
  /// `flags` into the folder `output`.
  Words train(const std::string& output, const Flags& flags = {}) const {
    return command(
        "train",
        with(work_.flags(), with({{"output_dir", work_ / output}, {"zero_stage", "3"}}, flags)));
  }
  /// The script that starts `launcher` on the program.
  static std::string starts(const std::string& launcher) { return "exec " + launcher + " \"$@\""; }

  std::string torchrun(int port, const std::string& flags) const {
    // -r and -t: the torchrun of Debian 12 cannot read its own default of 0.
    return starts(
        fmt::format("/usr/bin/torchrun -r 1 -t 1 --monitor_interval 0.1 --log_dir {} "
                    "--no_python --master_port {} {}",
                    (work_ / "logs").string(), port, flags));
  }
  static constexpr const char* kMpirun = "/usr/bin/mpirun --allow-run-as-root --oversubscribe -n 2";

  void expect_trained(const Outcome& outcome, const std::string& output, int ranks = 2) {
    ASSERT_EQ(outcome.code, 0) << outcome.text();
    EXPECT_EQ(count(outcome.out, "Running training"), 1) << "rank 0 alone prints";
    const fs::path expected = work_ / fmt::format("ours-{}", ranks);
    if (!fs::exists(expected)) {
      ASSERT_EQ(work_.run(launched(ranks, train(expected.filename()))).code, 0);
    }
    EXPECT_TRUE(read_bytes(work_ / (output + "/model.safetensors")) ==
                read_bytes(expected / "model.safetensors"));
    EXPECT_EQ(read_metrics(work_ / (output + "/metrics.jsonl")),
              read_metrics(expected / "metrics.jsonl"));
  }
  /// Two jobs at once, each of two ranks.
  void expect_apart(const std::string& one, const std::string& two) {
    auto first = work_.start_shell(one, train("one"));
    auto second = work_.start_shell(two, train("two"));
    expect_trained(end_of(*first), "one");
    expect_trained(end_of(*second), "two");
    work_.expect_nothing_left();
  }

  Workplace work_;
};

TEST_F(Foreign, TwoTorchrunsAtOnceDoNotMeet) {
  // Their agents own these two ports.
  const int port = quiet_port(2);
  expect_apart(torchrun(port, "--nproc_per_node 2"), torchrun(port + 1, "--nproc_per_node 2"));
}

TEST_F(Foreign, TorchrunOnTwoNodes) {
  const int port = quiet_port();
  const std::string node = "--nproc_per_node 1 --nnodes 2 --master_addr 127.0.0.1 --node_rank ";
  auto first = work_.start_shell(torchrun(port, node + "0"), train("out"));
  const Outcome second = work_.run_shell(torchrun(port, node + "1"), train("out"));
  EXPECT_EQ(second.code, 0) << second.text();
  expect_trained(end_of(*first), "out");
  work_.expect_nothing_left();
}

TEST_F(Foreign, TorchrunShowsTheReason) {
  const Outcome outcome = work_.run_shell(torchrun(quiet_port(), "--nproc_per_node 2"),
                                          train("out", {{"learing_rate", "1"}}));
  EXPECT_EQ(outcome.code, 1) << outcome.text();
  const size_t cause = outcome.err.find("Root Cause");
  ASSERT_NE(cause, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("unknown flag --learing_rate", cause), std::string::npos)
      << outcome.err;
}

TEST_F(Foreign, TorchrunRestartsARunWhereItWas) {
  const Flags flags = {{"save_strategy", "steps"}, {"save_steps", "2"}, {"max_steps", "40"}};
  const Flags slow = with(flags, {{"debug_comm_delay_ms", "10"}});
  auto running = work_.start_shell(torchrun(quiet_port(), "--nproc_per_node 2 --max_restarts 1"),
                                   train("out", slow));
  running->line_with("Saved " + (work_ / "out/checkpoint-2").string());
  const std::vector<int> ranks = children_of(running->process().pid());
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[1], SIGKILL), 0);
  const Outcome outcome = end_of(*running);
  ASSERT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(has(outcome.out, "the launcher has started this job again")) << outcome.out;
  ASSERT_EQ(work_.run(launched(2, train("whole", flags))).code, 0);
  EXPECT_TRUE(read_bytes(work_ / "out/model.safetensors") ==
              read_bytes(work_ / "whole/model.safetensors"));
}

TEST_F(Foreign, DeepspeedPutsItsFlagFirst) {
  // Its launcher is in no package of Debian: what it starts, with --no_python.
  const int port = quiet_port();
  std::vector<std::unique_ptr<Running>> ranks;
  for (const int rank : {0, 1}) {
    auto environment = rank_environment(rank, 2, port);
    environment.erase("LOCAL_WORLD_SIZE");
    environment["LOCAL_SIZE"] = "2";
    Words words = train("out");
    words.insert(words.begin(), fmt::format("--local_rank={}", rank));
    ranks.push_back(work_.start(words, environment));
  }
  const Outcome second = end_of(*ranks[1]);
  EXPECT_EQ(second.code, 0) << second.text();
  expect_trained(end_of(*ranks[0]), "out");
}

TEST_F(Foreign, TwoMpirunsAtOnceDoNotMeet) { expect_apart(starts(kMpirun), starts(kMpirun)); }

TEST_F(Foreign, MpiRanksSayAnErrorOnce) {
  const Outcome outcome = work_.run_shell(starts(kMpirun), train("out", {{"learing_rate", "1"}}));
  EXPECT_EQ(outcome.code, 2) << outcome.text();
  EXPECT_EQ(count(outcome.err, "unknown flag --learing_rate"), 1) << outcome.err;
}

TEST_F(Foreign, SrunOnTwoNodes) {
  const std::string cluster = (testing::source_folder() / "tests/dist/slurm_cluster.sh").string() +
                              " " + (work_ / "slurm").string();
  expect_trained(work_.run_shell(starts(cluster + " srun -N2 -n4"), train("out")), "out", 4);
  // A step on one node of the two, beside another one.
  const std::string both = cluster +
                           R"(-2 bash -c 'srun -N1 -n2 "$0" "${@/PLACE/one}" & first=$!
                              srun -N1 -n2 "$0" "${@/PLACE/two}" && wait $first')";
  const Outcome outcome = work_.run_shell(starts(both), train("PLACE"));
  ASSERT_EQ(outcome.code, 0) << outcome.text();
  EXPECT_TRUE(read_bytes(work_ / "one/model.safetensors") ==
              read_bytes(work_ / "two/model.safetensors"));
}

TEST_F(Foreign, ABatchScriptThatForgotSrunIsTold) {
  const Outcome outcome =
      work_.run_shell(starts((testing::source_folder() / "tests/dist/slurm_cluster.sh").string() +
                             " " + (work_ / "slurm").string() + " salloc -n2"),
                      train("out"));
  EXPECT_EQ(outcome.code, 2) << outcome.text();
  EXPECT_TRUE(has(outcome.err, "SLURM_NTASKS = 2: srun did not start this process")) << outcome.err;
}

}  // namespace
}  // namespace trireme::test
