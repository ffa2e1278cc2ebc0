// The program that distributed tests run as real processes.
//
//   dist_worker launch [--nproc N] [--port P] [--grace MS] [--prefix] -- SCENARIO [ARGUMENT...]
//   dist_worker SCENARIO [ARGUMENT...]      one rank, told by the environment
//
// A rank prints "rank R pid P" once it stands in the world. Errors go to standard error; the exit
// code is 2 for a ConfigError and 1 for others, as in the product.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cpu/communicator.h"
#include "cpu/communicator_calls.h"
#include "launch/agent.h"
#include "launch/world.h"

namespace trireme {
namespace {

std::chrono::milliseconds timeout_from_environment() {
  const char* const text = std::getenv("DIST_TIMEOUT_MS");
  return std::chrono::milliseconds(text == nullptr ? 30'000 : std::atoi(text));
}

std::unique_ptr<launch::World> connect() {
  const auto make = [](const launch::MeetingPlace& place) {
    return cpu::connect_processes(place.store, {.rank = place.ranks.rank,
                                                .world_size = place.ranks.world_size,
                                                .host = place.host,
                                                .timeout = timeout_from_environment(),
                                                .connect_timeout = place.connect_timeout});
  };
  launch::WorldSettings settings;
  settings.connect_timeout = timeout_from_environment();
  auto world =
      launch::connect_world(launch::discover_ranks(launch::process_environment()), settings, make);
  return world;
}

void announce(const launch::World& world) {
  fmt::print("rank {} pid {}\n", world.ranks().rank, getpid());
  std::fflush(stdout);
}

/// The sum of `value` over the ranks, `count` times.
float sum(launch::World& world, float value, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), value);
  const comm::CommPiece piece{data.data(), data.data(), count};
  std::vector<std::byte> workspace(static_cast<size_t>(cpu::CommSizing().workspace_bytes(
      comm::CommKind::all_reduce, DType::f32, world.ranks().world_size, std::array{count})));
  world.communicator().run({.kind = comm::CommKind::all_reduce,
                            .pieces = std::span(&piece, 1),
                            .workspace = workspace.data(),
                            .workspace_bytes = static_cast<int64_t>(workspace.size())});
  return data.back();
}

volatile sig_atomic_t stop_requested = 0;

/// Sums until a collective fails or SIGUSR1 comes to rank 0 (told to the others by the sum).
int loop(launch::World& world, int64_t count) {
  signal(SIGUSR1, [](int) { stop_requested = 1; });
  announce(world);
  for (int64_t i = 0;; ++i) {
    world.store().add("loops", 1);
    if (sum(world, world.ranks().rank == 0 ? static_cast<float>(stop_requested) : 0.0f, count) >
        0) {
      return 0;
    }
  }
}

/// Prints every signal it gets; ends well after SIGTERM.
int print_signals(launch::World& world) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  announce(world);
  for (;;) {
    int number = 0;
    sigwait(&set, &number);
    fmt::print("rank {} got {}\n", world.ranks().rank, number);
    std::fflush(stdout);
    if (number == SIGTERM) return 0;
  }
}

int run_scenario(const std::vector<std::string>& arguments) {
  const std::string& scenario = arguments.at(0);
  const auto argument = [&](size_t i) { return std::atoi(arguments.at(i).c_str()); };
  const auto world = connect();
  const int rank = world->ranks().rank;
  if (scenario == "sum") {
    const float total = sum(*world, static_cast<float>(rank + 1), 1000);
    fmt::print("rank {} sum {}\n", rank, total);
    return 0;
  }
  if (scenario == "loop") return loop(*world, argument(1));
  if (scenario == "signals") return print_signals(*world);
  if (scenario == "exit") {  // exit RANK CODE
    announce(*world);
    if (rank == argument(1)) {
      fmt::print(stderr, "first\nlast words of rank {}\n", rank);
      return argument(2);
    }
    return loop(*world, 10);
  }
  if (scenario == "stubborn") {  // rank 0 fails, the others do not go
    signal(SIGTERM, SIG_IGN);
    announce(*world);
    sum(*world, 1, 1);
    if (rank == 0) return 3;
    for (;;) pause();
  }
  if (scenario == "mismatch") {
    sum(*world, 1, rank == 1 ? 20 : 10);
    return 0;
  }
  if (scenario == "idle") {
    announce(*world);
    for (;;) pause();
  }
  throw ConfigError("scenario", scenario, "unknown");
}

int run_launch(const std::vector<std::string>& arguments) {
  launch::LaunchOptions options;
  size_t i = 1;
  for (; i < arguments.size() && arguments[i] != "--"; ++i) {
    const auto value = [&] { return std::atoi(arguments.at(++i).c_str()); };
    if (arguments[i] == "--nproc") {
      options.num_processes = value();
    } else if (arguments[i] == "--port") {
      options.master_port = value();
    } else if (arguments[i] == "--grace") {
      options.grace = std::chrono::milliseconds(value());
    } else if (arguments[i] == "--prefix") {
      options.prefix_output = true;
    } else if (arguments[i] == "--program") {
      options.program = arguments.at(++i);
    } else {
      throw ConfigError("flag", arguments[i], "unknown");
    }
  }
  return launch::launch(options,
                        {arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end()});
}

int run(const std::vector<std::string>& arguments) {
  try {
    return arguments.at(0) == "launch" ? run_launch(arguments) : run_scenario(arguments);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) { return trireme::run({argv + 1, argv + argc}); }
