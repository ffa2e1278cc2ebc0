// Rank discovery and child processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "launch/meeting.h"
#include "launch/process.h"
#include "launch/ranks.h"
#include "launch/slurm.h"
#include "launch/worker_output.h"
#include "launch/world.h"
#include "support/temp_folder.h"

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

/// Rank, world size, local rank, local world size.
using Place = std::array<int, 4>;
Place place_of(const Ranks& ranks) {
  return {ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size};
}

TEST(Ranks, AreReadFromTheEnvironment) {
  const Ranks ranks = discover_ranks(of(kGood));
  EXPECT_EQ(place_of(ranks), (Place{3, 4, 1, 2}));
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

/// What discover_ranks says against `variables` with `changes`.
std::string refusal(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  const auto message =
      test::message_of<ConfigError>([&] { discover_ranks(of(std::move(variables))); });
  return message.empty() ? "accepted" : message;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_MCA_ess_base_jobid", "680067073"}};

TEST(MpiRanks, OfOneHostNeedNoMaster) {
  const Ranks ranks = discover_ranks(of(kOpenMpi));
  EXPECT_EQ(place_of(ranks), (Place{3, 4, 3, 4}));
  EXPECT_EQ(ranks.master_addr, "127.0.0.1");
  EXPECT_EQ(ranks.master_port, 0);
  EXPECT_NE(ranks.job.find("680067073"), std::string::npos);
}

TEST(MpiRanks, NameWhatIsMissing) {
  EXPECT_EQ(refusal(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", ""}}),
            "OMPI_COMM_WORLD_SIZE = unset: set it, for OMPI_COMM_WORLD_RANK is set");
  EXPECT_EQ(refusal(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}),
            "OMPI_COMM_WORLD_LOCAL_SIZE = unset: set it, for OMPI_COMM_WORLD_RANK is set");
  EXPECT_EQ(
      refusal(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
      "MASTER_ADDR = unset: set it to the host of rank 0, for Open MPI does not say it");
  const Variables mpich = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(refusal(mpich, {}).rfind("MASTER_PORT = unset: set it to a free port, for MPICH", 0),
            0U);
  EXPECT_EQ(refusal(mpich, {{"MASTER_PORT", "29500"}}), "accepted");
  EXPECT_EQ(refusal(mpich, {{"PMI_SIZE", "1"}, {"MASTER_PORT", "29500"}}),
            "PMI_RANK = 1: must be below PMI_SIZE = 1");
  const Variables mvapich = {{"MV2_COMM_WORLD_RANK", "1"},
                             {"MV2_COMM_WORLD_SIZE", "2"},
                             {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                             {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"MASTER_PORT", "29500"}};
  EXPECT_EQ(discover_ranks(of(mvapich)).rank, 1);
}

const Variables kSlurm = {{"SLURM_JOB_ID", "100"},
                          {"SLURM_STEP_ID", "1"},
                          {"SLURM_PROCID", "4"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_STEP_NODELIST", "n[07-09]"}};

TEST(SlurmRanks, OfAStepFollowFromItsVariables) {
  const Ranks ranks = discover_ranks(of(kSlurm));
  EXPECT_EQ(place_of(ranks), (Place{4, 5, 0, 1}));
  EXPECT_EQ(ranks.master_addr, "n07");
  EXPECT_EQ(ranks.master_port, port_of_step(100, 1));
  Variables given = kSlurm;
  given["MASTER_ADDR"] = "login";
  given["MASTER_PORT"] = "29500";
  EXPECT_EQ(discover_ranks(of(given)).master_addr, "login");
  EXPECT_EQ(discover_ranks(of(given)).master_port, 29500);
}

TEST(SlurmRanks, AreNotThoseOfABatchScriptOrAShell) {
  const std::string sentence = "SLURM_NTASKS = 8: srun did not start this process; ";
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_STEP_ID", ""}}).rfind(sentence, 0), 0U);
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}).rfind(sentence, 0), 0U);
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_PROCID", ""}}).rfind(sentence, 0), 0U);
  Variables one = kSlurm;
  one["SLURM_STEP_ID"] = "";
  one["SLURM_NTASKS"] = "1";
  EXPECT_EQ(discover_ranks(of(one)).world_size, 1);
}

TEST(SlurmRanks, NameWhatIsMissingOrMalformed) {
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_LOCALID", ""}}),
            "SLURM_LOCALID = unset: set it, for SLURM_STEP_ID is set");
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2"}}),
            "SLURM_STEP_TASKS_PER_NODE = 2(x2: srun sets it; do not change it");
  EXPECT_EQ(refusal(kSlurm, {{"SLURM_STEP_NODELIST", "n[7"}}),
            "SLURM_STEP_NODELIST = n[7: srun sets it; do not change it");
}

TEST(Slurm, ListsAreRead) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("n[1-2]"), "n1");
  EXPECT_EQ(first_host("n[007,9-12]-ib,login"), "n007-ib");
  EXPECT_EQ(first_host("rack[3-4]n[01-16]"), "rack3n01");
  for (const char* bad : {"", ",n1", "n[1", "n[]", "n[a-b]"}) {
    EXPECT_EQ(first_host(bad), std::nullopt) << bad;
  }
  for (const auto& [node, tasks] : {std::pair(0, 4), {1, 2}, {3, 2}, {4, 1}}) {
    EXPECT_EQ(tasks_of_node("4,2(x3),1", node), tasks);
  }
  for (const char* bad : {"", "x", "2(x", "2(x)", "2(y3)", "0", "2,"}) {
    EXPECT_EQ(tasks_of_node(bad, 1), std::nullopt) << bad;
  }
}

TEST(Slurm, NeighbouringStepsHaveTheirOwnPorts) {
  std::set<int> ports;
  for (int job = 1'000'000; job < 1'000'020; ++job) {
    for (int step = 0; step < 20; ++step) ports.insert(port_of_step(job, step));
  }
  EXPECT_EQ(ports.size(), 400U);
  EXPECT_GE(*ports.begin(), 61000);
  EXPECT_LE(*ports.rbegin(), 65535);
}

TEST(Ranks, OfTorchrunKnowWhoseThePortIs) {
  Variables variables = kGood;
  EXPECT_FALSE(discover_ranks(of(variables)).port_taken);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(discover_ranks(of(variables)).port_taken);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RUN_ID"] = "one";
  const Ranks one = discover_ranks(of(variables));
  EXPECT_TRUE(one.port_taken);
  variables["TORCHELASTIC_RUN_ID"] = "two";
  EXPECT_NE(discover_ranks(of(variables)).job, one.job);
}

TEST(Meeting, IsReadBackAndReplaced) {
  const test::TempFolder folder;
  const Environment environment = of({{"XDG_RUNTIME_DIR", folder.path().string()}});
  const std::string path = meeting_path("job", "", environment);
  EXPECT_NE(meeting_path("other job", "", environment), path);
  EXPECT_EQ(read_meeting(path), std::nullopt);
  const std::string token(64, 'a');
  write_meeting(path, {token, {}});
  EXPECT_EQ(read_meeting(path), (Meeting{token, {}}));
  write_meeting(path, {token, store::Endpoint{"::1", 5}});
  EXPECT_EQ(read_meeting(path), (Meeting{token, store::Endpoint{"::1", 5}}));
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
