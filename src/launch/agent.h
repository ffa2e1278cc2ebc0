// `trireme launch`: the ranks of one host, started, watched and ended together.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme::launch {

/// The exit code of a rank whose settings or data are wrong.
inline constexpr int kWrongInput = 2;

/// Standard output (1), standard error (2), both (3) or neither (0), of each rank.
struct Streams {
  int of_all = 0;
  std::map<int, int> of_rank;  // instead

  int of(int rank) const {
    const auto found = of_rank.find(rank);
    return found == of_rank.end() ? of_all : found->second;
  }
  bool any() const { return of_all != 0 || !of_rank.empty(); }
};
inline constexpr int kStandardOutput = 1;
inline constexpr int kStandardError = 2;

struct LaunchOptions {
  int num_processes = 1;                  // --nproc_per_node
  std::string master_addr = "127.0.0.1";  // interface of the store
  int master_port = 0;                    // 0: a free one
  /// Starts each line of a rank with "[rank R] ". Otherwise standard output goes straight through.
  bool prefix_output = false;
  /// Where streams are written that are `redirected`, and not shown, or `teed`, and shown as well:
  /// log_dir/JOB/attempt_N/RANK/stdout.log and stderr.log, N the number of the restart.
  std::string log_dir;
  Streams redirected, teed;
  std::set<int> shown_ranks;  // whose streams are shown at all; empty: all
  /// How often all ranks are started again after one of them failed.
  int max_restarts = 0;
  /// After one rank died the others get SIGTERM, and SIGKILL so much later.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  /// Empty: this program.
  std::string program;
};

/// Runs `program arguments...` once per rank and returns the exit code of the job: 0, or that of
/// the first rank that failed (128 + signal), named on standard error with its pid, its end and,
/// when a signal ended it, its last line. Hosts the job's store, which so outlives every rank.
///
/// After a failure all ranks end, and are started again while `max_restarts` allows: with another
/// TRIREME_EPOCH and a store of their own, so that nothing left of the ranks before reaches them.
/// What another start cannot mend, exit code kWrongInput, ends the job; and so does a failure after
/// a signal that asks for the end.
///
/// SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGUSR1 are passed on to every rank. When this process
/// dies, by whatever signal, the ranks die within a second. Call it from the main thread, before
/// others exist. ConfigError for options that cannot be used (a port in use among them).
int launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

}  // namespace trireme::launch
