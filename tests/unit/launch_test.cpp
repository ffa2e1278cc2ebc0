// Rank discovery and child processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

#include "base/error.h"
#include "launch/process.h"
#include "launch/ranks.h"
#include "launch/worker_output.h"
#include "launch/world.h"

namespace trireme::launch {
namespace {

using store::Clock;
using Variables = std::map<std::string, std::string, std::less<>>;

Environment of(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

const Variables kGood = {{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"}};

TEST(Ranks, AreReadFromTheEnvironment) {
  const Ranks ranks = discover_ranks(of(kGood));
  EXPECT_EQ(ranks.rank, 3);
  EXPECT_EQ(ranks.world_size, 4);
  EXPECT_EQ(ranks.local_rank, 1);
  EXPECT_EQ(ranks.local_world_size, 2);
  EXPECT_EQ(ranks.master_addr, "node0");
  EXPECT_EQ(ranks.master_port, 29500);
  EXPECT_FALSE(ranks.one_host());
}

TEST(Ranks, WithoutALauncherIsOneProcess) {
  const Ranks ranks = discover_ranks(of({{"MASTER_ADDR", "leftover"}}));
  EXPECT_EQ(ranks.world_size, 1);
  EXPECT_EQ(ranks.rank, 0);
}

TEST(Ranks, OneRankNeedsNoMaster) {
  EXPECT_EQ(
      discover_ranks(of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}})).world_size, 1);
}

TEST(Ranks, TakeDeepspeedsLocalSize) {
  Variables variables = kGood;
  variables["LOCAL_WORLD_SIZE"] = "";
  variables["LOCAL_SIZE"] = "2";
  EXPECT_EQ(discover_ranks(of(variables)).local_world_size, 2);
}

TEST(Ranks, NameWhatIsMissingOrContradicts) {
  const auto message = [](const std::string& name, const std::string& value) {
    Variables variables = kGood;
    variables[name] = value;
    try {
      discover_ranks(of(variables));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_EQ(message(name, "").rfind(std::string(name) + " = unset", 0), 0u)
        << name << ": " << message(name, "");
  }
  EXPECT_EQ(message("RANK", "4"), "RANK = 4: must be below WORLD_SIZE = 4");
  EXPECT_EQ(message("RANK", "-1").rfind("RANK = -1", 0), 0u);
  EXPECT_EQ(message("RANK", "3x").rfind("RANK = 3x", 0), 0u);
  EXPECT_EQ(message("WORLD_SIZE", "0").rfind("WORLD_SIZE = 0", 0), 0u);
  EXPECT_EQ(message("LOCAL_RANK", "2"), "LOCAL_RANK = 2: must be below LOCAL_WORLD_SIZE = 2");
  EXPECT_EQ(message("LOCAL_WORLD_SIZE", "5"),
            "LOCAL_WORLD_SIZE = 5: must not exceed WORLD_SIZE = 4");
  EXPECT_EQ(message("MASTER_PORT", "70000").rfind("MASTER_PORT = 70000", 0), 0u);
  // All on one host, yet the local rank is another.
  EXPECT_EQ(message("LOCAL_WORLD_SIZE", "4").rfind("LOCAL_RANK = 1", 0), 0u);
}

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", script};
  return options;
}

TEST(Process, TellsHowItEnded) {
  Process good(shell("exit 0")), bad(shell("exit 9")), killed(shell("kill -TERM $$"));
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  EXPECT_EQ(good.wait(deadline)->exit_code(), 0);
  EXPECT_EQ(bad.wait(deadline)->words(), "exited with code 9");
  EXPECT_EQ(killed.wait(deadline)->exit_code(), 128 + SIGTERM);
  EXPECT_EQ(killed.status()->words(), "was ended by signal 15 (Terminated)");
}

TEST(Process, AWaitIsBoundedAndTheGroupEndsTogether) {
  Process process(shell("sleep 1000 & sleep 1000"));
  EXPECT_FALSE(process.wait(Clock::now() + std::chrono::milliseconds(50)));
  process.signal_all(SIGKILL);
  EXPECT_TRUE(process.wait(Clock::now() + std::chrono::seconds(30)));
}

TEST(Process, AMissingProgramIsAnErrorOfTheParent) {
  SpawnOptions options;
  options.program = "/nonexistent/program";
  try {
    const Process process(options);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()),
              "execve('/nonexistent/program'): No such file or directory");
  }
}

TEST(Process, SetsTheEnvironmentAndReplacesWhatWasThere) {
  ASSERT_EQ(setenv("TRIREME_TEST_OLD", "old", 1), 0);
  SpawnOptions options = shell("test \"$TRIREME_TEST_OLD$TRIREME_TEST_NEW\" = 'new value; $HOME'");
  options.environment = {{"TRIREME_TEST_OLD", "new "}, {"TRIREME_TEST_NEW", "value; $HOME"}};
  Process process(options);
  EXPECT_EQ(process.wait(Clock::now() + std::chrono::seconds(30))->exit_code(), 0);
}

TEST(WorkerOutput, PassesWholeLinesOnAndRemembersTheLast) {
  int in[2], out[2];
  ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const store::Fd out_reader(out[0]);
  store::Fd out_writer(out[1]), in_writer(in[1]);
  WorkerOutput output(store::Fd(in[0]), out_writer.get(), "[rank 1] ");
  const auto say = [&](std::string_view text) {
    ASSERT_EQ(write(in_writer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    output.read_some();
  };
  say("one\ntw");
  say("o\n\n");
  EXPECT_EQ(output.last_line(), "two");
  say("thr");
  in_writer.reset();
  output.read_some();
  EXPECT_EQ(output.last_line(), "thr");
  EXPECT_EQ(output.fd(), -1);
  out_writer.reset();
  std::string text(1000, '\0');
  text.resize(static_cast<size_t>(read(out_reader.get(), text.data(), text.size())));
  EXPECT_EQ(text, "[rank 1] one\n[rank 1] two\n[rank 1] \n[rank 1] thr\n");
}

TEST(World, OfOneProcessHasItsOwnStore) {
  const auto world = connect_world(Ranks{}, WorldSettings{}, of({}));
  world->store().set("k", "v");
  EXPECT_EQ(world->store().try_get("k"), "v");
}

TEST(World, SeveralHostsNeedASharedPlaceForTheToken) {
  try {
    connect_world(discover_ranks(of(kGood)), WorldSettings{}, of(kGood));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("TRIREME_TOKEN_FILE"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::launch
