// Real processes in tests: started, read line by line, and always ended, with a bound on each wait.
#pragma once

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "launch/process.h"

namespace trireme::test {

inline constexpr auto kPatience = std::chrono::seconds(30);

/// A running program whose output is collected.
class Running {
 public:
  Running(const std::string& program, const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {});

  launch::Process& process() { return process_; }
  /// Reads standard output until a whole line holds `text`; returns it. Fails the test when the
  /// program ends or stays silent first.
  std::string line_with(const std::string& text);
  /// Waits for the end; the exit code as a shell reports it. Output is then complete.
  int finish();
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  struct Pipe {
    store::Fd reader, writer;
    Pipe();
  };
  Running(const std::string& program, const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment, Pipe out, Pipe err);
  bool read_more(store::Clock::time_point deadline);

  store::Fd out_reader_, err_reader_;
  launch::Process process_;
  std::string out_, err_;
};

/// Readable when the process with that id ends, also when it is not our child.
store::Fd watch_pid(int pid);

/// Its children, by their ids.
std::vector<int> children_of(int parent);

/// The variables of one rank started by hand on one host.
std::map<std::string, std::string> rank_environment(int rank, int world_size, int port);

/// A port that nobody listens on now.
int free_port();

/// The first of `count` neighbouring ports that nobody takes by chance: below those that
/// connections get by themselves.
int quiet_port(int count = 1);

/// N of "rank R pid N" for every rank below `size`.
std::map<int, int> read_pids(Running& running, int size);

}  // namespace trireme::test
