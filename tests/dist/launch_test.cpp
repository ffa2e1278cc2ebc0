// The launcher: sizes, exit codes, signals, and nothing left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "dist/processes.h"
#include "support/temp_folder.h"

namespace trireme::test {
namespace {

std::vector<std::string> launch_arguments(int size, std::vector<std::string> scenario,
                                          std::vector<std::string> flags = {}) {
  std::vector<std::string> arguments{"launch", "--nproc", std::to_string(size)};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.push_back("--");
  arguments.insert(arguments.end(), scenario.begin(), scenario.end());
  return arguments;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class LaunchSizes : public testing::TestWithParam<int> {};

TEST_P(LaunchSizes, EveryRankSums) {
  const int size = GetParam();
  Running job(DIST_WORKER, launch_arguments(size, {"sum"}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(has(job.out(), fmt::format("rank {} sum {}\n", rank, size * (size + 1) / 2)))
        << job.out();
  }
  EXPECT_EQ(job.err(), "");
}
INSTANTIATE_TEST_SUITE_P(Launch, LaunchSizes, testing::Values(1, 2, 3, 4, 5));

TEST(Launch, PrefixesLinesWhenAsked) {
  Running job(DIST_WORKER, launch_arguments(2, {"sum"}, {"--prefix"}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), "[rank 0] rank 0 sum 3\n")) << job.out();
  EXPECT_TRUE(has(job.out(), "[rank 1] rank 1 sum 3\n")) << job.out();
}

/// What lies at PATH in the folder of the one job that has logs in `folder`.
std::string log_of(const TempFolder& folder, const std::string& path) {
  const std::filesystem::directory_iterator jobs(folder.path());
  std::ifstream file(jobs->path() / path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Launch, KeepsTheOutputOfEachRank) {
  const TempFolder folder;
  Running job(DIST_WORKER, launch_arguments(2, {"flaky", "1", "7", "1"},
                                            {"--restarts", "1", "--logs", folder.path(), "--teed",
                                             "3", "--prefix"}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_TRUE(has(job.out(), "[rank 1] rank 1 sum 3\n")) << job.out();
  EXPECT_TRUE(has(job.err(), "logs of the ranks are in")) << job.err();
  EXPECT_TRUE(has(log_of(folder, "attempt_0/1/stdout.log"), "rank 1 pid "));
  EXPECT_FALSE(has(log_of(folder, "attempt_0/1/stdout.log"), "sum"));
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(has(log_of(folder, fmt::format("attempt_1/{}/stdout.log", rank)),
                    fmt::format("\nrank {} sum 3\n", rank)));
  }
}

TEST(Launch, ShowsTheLastLineOfARankWhoseOutputIsInAFileAlone) {
  const TempFolder folder;
  Running job(DIST_WORKER, launch_arguments(3, {"exit", "2", "7"},
                                            {"--logs", folder.path(), "--redirected", "3"}));
  EXPECT_EQ(job.finish(), 7);
  EXPECT_EQ(job.out(), "");
  EXPECT_FALSE(has(job.err(), "first\n")) << job.err();
  EXPECT_TRUE(has(job.err(), "exited with code 7; its last line: last words of rank 2\n"))
      << job.err();
  EXPECT_EQ(log_of(folder, "attempt_0/2/stderr.log"), "first\nlast words of rank 2\n");
}

TEST(Launch, ShowsSomeRanksAlone) {
  Running job(DIST_WORKER, launch_arguments(3, {"sum"}, {"--shown", "1"}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_EQ(job.out(), "rank 1 sum 6\n");
}

TEST(Launch, AFolderOfLogsThatCannotBeWrittenIsNamed) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "x";
  Running job(DIST_WORKER,
              launch_arguments(1, {"sum"}, {"--logs", folder / "file", "--redirected", "3"}));
  EXPECT_EQ(job.finish(), 2);
  EXPECT_TRUE(has(job.err(), "log_dir = ")) << job.err();
}

TEST(Launch, ExitsWithTheCodeOfTheFirstThatFailedAndNamesIt) {
  Running job(DIST_WORKER, launch_arguments(3, {"exit", "2", "7"}));
  const auto pids = read_pids(job, 3);
  EXPECT_EQ(job.finish(), 7);
  EXPECT_TRUE(has(job.err(), fmt::format("rank 2 (pid {}) exited with code 7\n", pids.at(2))))
      << job.err();
  const size_t said = job.err().find("last words of rank 2");
  EXPECT_NE(said, std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("last words of rank 2", said + 1), std::string::npos) << job.err();
}

TEST(Launch, ExitsWith128AndTheSignalOfAKilledRank) {
  Running job(DIST_WORKER, launch_arguments(3, {"loop", "1000"}));
  const auto pids = read_pids(job, 3);
  ASSERT_EQ(kill(pids.at(1), SIGKILL), 0);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  EXPECT_TRUE(has(job.err(), fmt::format("rank 1 (pid {}) was ended by signal 9", pids.at(1))))
      << job.err();
}

constexpr std::string_view kAgain = "starting all ranks again";

int restarts_of(const Running& job) {
  int found = 0;
  for (size_t at = 0; (at = job.err().find(kAgain, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(Launch, StartsAllRanksAgainAfterAFailure) {
  const std::string port = std::to_string(free_port());
  Running job(DIST_WORKER,
              launch_arguments(3, {"flaky", "1", "7", "2"}, {"--restarts", "2", "--port", port}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_EQ(restarts_of(job), 2) << job.err();
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(has(job.out(), fmt::format("rank {} sum 6\n", rank))) << job.out();
  }
}

TEST(Launch, GivesUpWhenRestartsAreUsedUp) {
  Running job(DIST_WORKER, launch_arguments(2, {"flaky", "1", "7", "2"}, {"--restarts", "1"}));
  EXPECT_EQ(job.finish(), 7) << job.err();
  EXPECT_EQ(restarts_of(job), 1) << job.err();
}

TEST(Launch, WhatAnotherStartCannotMendIsNotTriedAgain) {
  Running job(DIST_WORKER, launch_arguments(2, {"flaky", "1", "2", "2"}, {"--restarts", "5"}));
  EXPECT_EQ(job.finish(), 2) << job.err();
  EXPECT_EQ(restarts_of(job), 0) << job.err();
}

TEST(Launch, ASignalToEndIsTheEnd) {
  Running job(DIST_WORKER, launch_arguments(2, {"idle"}, {"--restarts", "5"}));
  read_pids(job, 2);
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
  EXPECT_EQ(restarts_of(job), 0) << job.err();
}

TEST(Launch, KillsRanksThatDoNotGo) {
  Running job(DIST_WORKER, launch_arguments(3, {"stubborn"}, {"--grace", "100"}));
  EXPECT_EQ(job.finish(), 3) << job.err();
}

TEST(Launch, PassesSignalsOn) {
  Running job(DIST_WORKER, launch_arguments(2, {"signals"}));
  read_pids(job, 2);
  for (const int number : {SIGUSR1, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    job.process().signal(number);
    for (const int rank : {0, 1}) job.line_with(fmt::format("rank {} got {}", rank, number));
  }
  EXPECT_EQ(job.finish(), 0) << job.err();
}

TEST(Launch, ARankEndedByAPassedSignalGivesItsCode) {
  Running job(DIST_WORKER, launch_arguments(2, {"idle"}));
  read_pids(job, 2);
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
}

/// How many times longer than on an idle machine things may take.
double load_of_machine() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) return 1;
  return std::max(1.0, load / std::thread::hardware_concurrency());
}

class LauncherDeath : public testing::TestWithParam<int> {};

TEST_P(LauncherDeath, TakesTheRanksAlong) {
  Running job(DIST_WORKER, launch_arguments(3, {"idle"}));
  std::vector<store::Fd> ends;
  for (const auto& [rank, pid] : read_pids(job, 3)) ends.push_back(watch_pid(pid));
  const auto begin = store::Clock::now();
  job.process().signal(GetParam());
  for (const store::Fd& end : ends) {
    EXPECT_TRUE(store::wait_ready(end.get(), POLLIN, begin + kPatience));
  }
  EXPECT_LT(store::Clock::now() - begin, std::chrono::seconds(1) * load_of_machine());
  job.finish();
}
INSTANTIATE_TEST_SUITE_P(Launch, LauncherDeath, testing::Values(SIGKILL, SIGSEGV, SIGABRT));

TEST(Launch, TheControlPipeAloneEndsARank) {
  // Without the kernel's parent-death signal: only the pipe's end tells.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  store::Fd reader(ends[0]), writer(ends[1]);
  ASSERT_EQ(fcntl(writer.get(), F_SETFD, FD_CLOEXEC), 0);
  launch::SpawnOptions options;
  options.program = DIST_WORKER;
  options.arguments = {"idle"};
  options.dies_with_parent = false;
  options.inherited = {reader.get()};
  options.environment = {{"TRIREME_CONTROL_FD", std::to_string(reader.get())}};
  launch::Process worker(options);
  reader.reset();
  EXPECT_FALSE(worker.wait(store::Clock::now() + std::chrono::milliseconds(200)));
  writer.reset();
  const auto status = worker.wait(store::Clock::now() + kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->exit_code(), 128 + SIGKILL);
}

TEST(Launch, APortInUseIsRefusedByNumberAndTheFirstJobGoesOn) {
  const std::string port = std::to_string(free_port());
  Running first(DIST_WORKER, launch_arguments(2, {"loop", "100"}, {"--port", port}));
  read_pids(first, 2);
  Running second(DIST_WORKER, launch_arguments(2, {"sum"}, {"--port", port}));
  EXPECT_EQ(second.finish(), 2);
  EXPECT_TRUE(has(second.err(), "master_port = " + port)) << second.err();
  first.process().signal(SIGUSR1);
  EXPECT_EQ(first.finish(), 0) << first.err();
}

TEST(Launch, AMissingProgramIsNamed) {
  Running job(DIST_WORKER, launch_arguments(2, {"sum"}, {"--program", "/nonexistent/program"}));
  EXPECT_EQ(job.finish(), 1);
  EXPECT_TRUE(has(job.err(), "/nonexistent/program")) << job.err();
}

TEST(Launch, AbuseOfTheStoreLeavesTheJobUnharmed) {
  const int port = free_port();
  Running job(DIST_WORKER, launch_arguments(2, {"loop", "1000"}, {"--port", std::to_string(port)}));
  read_pids(job, 2);
  std::vector<store::Fd> silent;
  std::string reason;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(
        store::try_connect({"127.0.0.1", port}, store::Clock::now() + kPatience, &reason));
    ASSERT_TRUE(silent.back().valid()) << reason;
    if (i % 2 == 0) continue;
    const std::string garbage(static_cast<size_t>(100 * i), static_cast<char>(i));
    (void)store::send_all(silent.back().get(),
                          std::as_bytes(std::span(garbage.data(), garbage.size())),
                          store::Clock::now() + kPatience);
  }
  // A rank with another token is refused, and the job goes on.
  auto environment = rank_environment(1, 2, port);
  environment["TRIREME_TOKEN_FILE"] = "/proc/self/environ";
  Running intruder(DIST_WORKER, {"sum"}, environment);
  EXPECT_NE(intruder.finish(), 0);
  job.process().signal(SIGUSR1);
  EXPECT_EQ(job.finish(), 0) << job.err();
}

}  // namespace
}  // namespace trireme::test
