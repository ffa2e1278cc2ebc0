// Ranks started by hand, as a foreign launcher does: lost, stopped and contradicting peers.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "dist/processes.h"
#include "store/proof.h"

namespace trireme::test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class World : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "trireme_world_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// All ranks of a job. Each test has its own runtime folder, and so its own token files.
  std::vector<std::unique_ptr<Running>> start(int size, const std::vector<std::string>& scenario,
                                              std::map<std::string, std::string> more = {}) {
    const int port = free_port();
    std::vector<std::unique_ptr<Running>> ranks;
    for (int rank = 0; rank < size; ++rank) {
      auto environment = rank_environment(rank, size, port);
      environment["XDG_RUNTIME_DIR"] = folder_;
      for (const auto& [name, value] : more) environment[name] = value;
      ranks.push_back(std::make_unique<Running>(DIST_WORKER, scenario, environment));
    }
    return ranks;
  }

  std::string folder_;
};

TEST_F(World, RankZeroHostsTheStoreAndNoTokenIsLeft) {
  auto ranks = start(3, {"sum"});
  for (auto& rank : ranks) EXPECT_EQ(rank->finish(), 0) << rank->err();
  EXPECT_TRUE(has(ranks[2]->out(), "rank 2 sum 6\n"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    EXPECT_FALSE(entry.is_regular_file()) << entry.path() << " was left behind";
  }
}

class LostRank : public World, public testing::WithParamInterface<std::pair<int, int64_t>> {};

TEST_P(LostRank, IsNamedByAllOthers) {
  const auto [victim, count] = GetParam();
  auto ranks = start(4, {"loop", std::to_string(count)});
  for (int rank = 0; rank < 4; ++rank) {
    ranks[static_cast<size_t>(rank)]->line_with(fmt::format("rank {} pid", rank));
  }
  ranks[static_cast<size_t>(victim)]->process().signal(SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    Running& running = *ranks[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(running.finish(), 128 + SIGKILL);
      continue;
    }
    EXPECT_EQ(running.finish(), 1);
    // A rank that was in the store when its host died says so instead.
    const bool store_lost = victim == 0 && has(running.err(), "store at");
    const bool named =
        has(running.err(), ": lost ") && has(running.err(), fmt::format("rank {}", victim));
    EXPECT_TRUE(store_lost || named) << running.err();
  }
}
INSTANTIATE_TEST_SUITE_P(World, LostRank,
                         testing::Values(std::pair(3, int64_t{10}), std::pair(1, int64_t{1} << 22),
                                         std::pair(0, int64_t{1000})));

TEST_F(World, AStoppedRankIsNamedAndLearnsOfItLater) {
  auto ranks = start(3, {"loop", "1000"}, {{"DIST_TIMEOUT_MS", "1000"}});
  for (int rank = 0; rank < 3; ++rank) {
    ranks[static_cast<size_t>(rank)]->line_with(fmt::format("rank {} pid", rank));
  }
  ranks[1]->process().signal(SIGSTOP);
  std::string said;
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(ranks[rank]->finish(), 1);
    said += ranks[rank]->err();
  }
  EXPECT_TRUE(has(said, "timed out after 1000 ms waiting for rank 1")) << said;
  EXPECT_TRUE(has(said, "all_reduce on group 0, call ")) << said;
  ranks[1]->process().signal(SIGCONT);
  EXPECT_EQ(ranks[1]->finish(), 1) << "the stopped rank went on as if nothing had happened";
}

TEST_F(World, AMismatchFailsEveryRank) {
  auto ranks = start(3, {"mismatch"});
  for (auto& rank : ranks) {
    EXPECT_EQ(rank->finish(), 1);
    EXPECT_TRUE(has(rank->err(), "mismatch with rank")) << rank->err();
  }
}

TEST_F(World, TwoJobsOnOnePortDoNotMeet) {
  const int port = free_port();
  const auto job_environment = [&](const std::string& name, int rank) {
    auto environment = rank_environment(rank, 2, port);
    const std::string path = folder_ + "/" + name;
    store::write_token(path, store::make_token());  // once per job
    environment["TRIREME_TOKEN_FILE"] = path;
    environment["DIST_TIMEOUT_MS"] = "3000";
    return environment;
  };
  Running first0(DIST_WORKER, {"loop", "100"}, job_environment("first", 0));
  Running first1(DIST_WORKER, {"loop", "100"}, job_environment("first", 1));
  first0.line_with("rank 0 pid");
  Running second0(DIST_WORKER, {"sum"}, job_environment("second", 0));
  Running second1(DIST_WORKER, {"sum"}, job_environment("second", 1));
  EXPECT_EQ(second0.finish(), 2);
  EXPECT_TRUE(has(second0.err(), fmt::format("MASTER_PORT = {}", port))) << second0.err();
  EXPECT_EQ(second1.finish(), 1);
  EXPECT_TRUE(has(second1.err(), "refused")) << second1.err();
  first0.process().signal(SIGUSR1);
  EXPECT_EQ(first0.finish(), 0) << first0.err();
  EXPECT_EQ(first1.finish(), 0) << first1.err();
}

TEST_F(World, AStaleTokenIsReplaced) {
  // What a job that was killed left behind: the others must wait for the new one.
  auto ranks = start(2, {"sum"});
  for (auto& rank : ranks) EXPECT_EQ(rank->finish(), 0) << rank->err();
  const int port = free_port();
  const std::string job = fmt::format("127.0.0.1:{}", port);
  const std::string path =
      folder_ + "/trireme/token-" + store::to_hex(store::sha256(job)).substr(0, 16);
  ASSERT_TRUE(store::write_token(path, store::make_token()));
  auto environment = rank_environment(1, 2, port);
  environment["XDG_RUNTIME_DIR"] = folder_;
  Running late(DIST_WORKER, {"sum"}, environment);
  environment = rank_environment(0, 2, port);
  environment["XDG_RUNTIME_DIR"] = folder_;
  Running host(DIST_WORKER, {"sum"}, environment);
  EXPECT_EQ(host.finish(), 0) << host.err();
  EXPECT_EQ(late.finish(), 0) << late.err();
}

TEST_F(World, ContradictingVariablesExitWith2) {
  auto environment = rank_environment(5, 2, free_port());
  Running rank(DIST_WORKER, {"sum"}, environment);
  EXPECT_EQ(rank.finish(), 2);
  EXPECT_TRUE(has(rank.err(), "RANK = 5")) << rank.err();
}

}  // namespace
}  // namespace trireme::test
