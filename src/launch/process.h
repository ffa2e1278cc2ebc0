// Child processes: started without a shell, waited for with a bound.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/socket.h"

namespace trireme::launch {

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit code, or the signal
  /// The code a shell reports: 128 + signal.
  int exit_code() const { return signaled ? 128 + code : code; }
  /// "exited with code 3", "was ended by signal 9 (Killed)".
  std::string words() const;
};

struct SpawnOptions {
  std::string program;
  std::vector<std::string> arguments;              // without the program's name
  std::map<std::string, std::string> environment;  // added to this process's, or replacing
  std::string name;                                // argv[0]; empty: `program`
  int standard_input = -1;                         // -1: /dev/null
  int standard_output = -1;                        // -1: this process's
  int standard_error = -1;
  std::vector<int> inherited;  // descriptors kept open, same numbers
  /// Killed when the thread that started it ends (so start it from one that lasts).
  bool dies_with_parent = true;
  /// Its own process group: a terminal's signals do not reach it, and signal_all() does.
  bool own_group = true;
};

/// A child. Destroying one that still runs kills and reaps it.
class Process {
 public:
  /// Throws DeviceError when the program cannot be started.
  explicit Process(const SpawnOptions& options);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable (poll) once it has ended.
  int ended_fd() const { return pidfd_.get(); }
  /// Its end, waiting until the deadline; remembered. nullopt: it still runs.
  std::optional<ExitStatus> wait(store::Clock::time_point deadline);
  const std::optional<ExitStatus>& status() const { return status_; }
  /// To the process; nothing once it was reaped.
  void signal(int number) const;
  /// To its whole group, if it has its own.
  void signal_all(int number) const;

 private:
  pid_t pid_ = -1;
  bool own_group_ = false;
  store::Fd pidfd_;
  std::optional<ExitStatus> status_;
};

/// This program's file, to start it again.
std::string own_program();

/// Starts this program again with the same arguments and OMP_WAIT_POLICY=passive, when that is not
/// set: threads that wait must not spin where ranks outnumber cores, and OpenMP reads the variable
/// before main. Returns only when nothing was to be done.
void restart_with_passive_waits(char** argv);

}  // namespace trireme::launch
