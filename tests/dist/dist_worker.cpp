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

/// One rank's place and its communicator.
struct Rank {
  std::unique_ptr<launch::World> world;
  std::unique_ptr<comm::Communicator> communicator;
  int index() const { return communicator->rank(); }
};

Rank connect() {
  launch::WorldSettings settings;
  settings.connect_timeout = timeout_from_environment();
  Rank rank;
  rank.world =
      launch::connect_world(launch::discover_ranks(launch::process_environment()), settings);
  cpu::WorldOptions options;
  options.rank = rank.world->ranks().rank;
  options.world_size = rank.world->ranks().world_size;
  options.host = rank.world->host();
  options.timeout = timeout_from_environment();
  options.connect_timeout = settings.connect_timeout;
  rank.communicator = cpu::connect_processes(rank.world->store(), options);
  return rank;
}

void announce(const Rank& rank) {
  fmt::print("rank {} pid {}\n", rank.index(), getpid());
  std::fflush(stdout);
}

/// The sum of `value` over the ranks, `count` times.
float sum(Rank& rank, float value, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), value);
  const comm::CommPiece piece{data.data(), data.data(), count};
  comm::CommCall call{.kind = comm::CommKind::all_reduce, .pieces = std::span(&piece, 1)};
  std::vector<std::byte> workspace(static_cast<size_t>(
      cpu::CommSizing().workspace_bytes(call, rank.communicator->world_size())));
  call.workspace = workspace.data();
  call.workspace_bytes = static_cast<int64_t>(workspace.size());
  rank.communicator->run(call);
  return data.back();
}

volatile sig_atomic_t stop_requested = 0;

/// Sums until a collective fails or SIGUSR1 comes to rank 0 (told to the others by the sum).
int loop(Rank& rank, int64_t count) {
  signal(SIGUSR1, [](int) { stop_requested = 1; });
  announce(rank);
  for (int64_t i = 0;; ++i) {
    rank.world->store().add("loops", 1);
    if (sum(rank, rank.index() == 0 ? static_cast<float>(stop_requested) : 0.0f, count) > 0) {
      return 0;
    }
  }
}

/// Prints every signal it gets; ends well after SIGTERM.
int print_signals(Rank& rank) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  announce(rank);
  for (;;) {
    int number = 0;
    sigwait(&set, &number);
    fmt::print("rank {} got {}\n", rank.index(), number);
    std::fflush(stdout);
    if (number == SIGTERM) return 0;
  }
}

int run_scenario(const std::vector<std::string>& arguments) {
  const std::string& scenario = arguments.at(0);
  const auto argument = [&](size_t i) { return std::atoi(arguments.at(i).c_str()); };
  Rank rank = connect();
  const int index = rank.index();
  if (scenario == "sum") {
    const float total = sum(rank, static_cast<float>(index + 1), 1000);
    fmt::print("rank {} sum {}\n", index, total);
    return 0;
  }
  if (scenario == "loop") return loop(rank, argument(1));
  if (scenario == "signals") return print_signals(rank);
  if (scenario == "exit") {  // exit RANK CODE
    announce(rank);
    if (index == argument(1)) {
      fmt::print(stderr, "first\nlast words of rank {}\n", index);
      return argument(2);
    }
    return loop(rank, 10);
  }
  if (scenario == "flaky") {  // flaky RANK CODE STARTS: fails in the first so many
    announce(rank);
    const char* const epoch = std::getenv("TRIREME_EPOCH");
    if (index == argument(1) && std::atoi(epoch) < argument(3)) return argument(2);
    fmt::print("rank {} sum {}\n", index, sum(rank, static_cast<float>(index + 1), 1000));
    return 0;
  }
  if (scenario == "stubborn") {  // rank 0 fails, the others do not go
    signal(SIGTERM, SIG_IGN);
    announce(rank);
    sum(rank, 1, 1);
    if (index == 0) return 3;
    for (;;) pause();
  }
  if (scenario == "mismatch") {
    sum(rank, 1, index == 1 ? 20 : 10);
    return 0;
  }
  if (scenario == "idle") {
    announce(rank);
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
    } else if (arguments[i] == "--restarts") {
      options.max_restarts = value();
    } else if (arguments[i] == "--logs") {
      options.log_dir = arguments.at(++i);
    } else if (arguments[i] == "--redirected") {
      options.redirected.of_all = value();
    } else if (arguments[i] == "--teed") {
      options.teed.of_all = value();
    } else if (arguments[i] == "--shown") {
      options.shown_ranks = {value()};
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
