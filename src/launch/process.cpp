#include "launch/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

extern char** environ;

namespace trireme::launch {

using store::Clock;
using store::Fd;

namespace {

constexpr auto kReapTime = std::chrono::seconds(5);

/// Everything the child needs, made before the fork: after it only async-signal-safe calls are
/// allowed, since other threads may have held locks.
struct Launchpad {
  explicit Launchpad(const SpawnOptions& o) : options(o) {
    arguments.push_back(o.name.empty() ? o.program : o.name);
    arguments.insert(arguments.end(), o.arguments.begin(), o.arguments.end());
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (o.environment.count(text.substr(0, text.find('='))) == 0) environment.push_back(text);
    }
    for (const auto& [name, value] : o.environment) environment.push_back(name + "=" + value);
    for (std::string& text : arguments) argv.push_back(text.data());
    for (std::string& text : environment) envp.push_back(text.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
  const SpawnOptions& options;
  std::vector<std::string> arguments, environment;
  std::vector<char*> argv, envp;
};

[[noreturn]] void report_and_leave(int pipe, int code) {
  (void)!write(pipe, &code, sizeof code);  // the parent sees the end of the pipe in any case
  _exit(127);
}

bool replace(int fd, int with) {
  return with < 0 || (with == fd ? fcntl(fd, F_SETFD, 0) == 0 : dup2(with, fd) == fd);
}

[[noreturn]] void become(const Launchpad& pad, pid_t parent, int error_pipe) {
  const SpawnOptions& options = pad.options;
  if (options.own_group) setpgid(0, 0);
  if (options.dies_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before prctl
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input =
      options.standard_input >= 0 ? options.standard_input : open("/dev/null", O_RDONLY);
  bool ready = replace(0, input) && replace(1, options.standard_output) &&
               replace(2, options.standard_error);
  for (const int fd : options.inherited) ready = ready && fcntl(fd, F_SETFD, 0) == 0;
  if (ready) execve(options.program.c_str(), pad.argv.data(), pad.envp.data());
  report_and_leave(error_pipe, errno);
}

}  // namespace

std::string ExitStatus::words() const {
  if (!signaled) return fmt::format("exited with code {}", code);
  return fmt::format("was ended by signal {} ({})", code, strsignal(code));
}

Process::Process(const SpawnOptions& options) : own_group_(options.own_group) {
  const Launchpad pad(options);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe", options.program);
  const Fd reader(ends[0]);
  Fd writer(ends[1]);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw_errno("fork", options.program);
  if (pid_ == 0) become(pad, parent, ends[1]);
  writer.reset();
  if (own_group_) setpgid(pid_, pid_);  // both sides, so that it holds for either from now on
  int code = 0;
  const bool failed = read(reader.get(), &code, sizeof code) == sizeof code;
  if (!failed) {
    pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (!pidfd_.valid()) code = errno;
  }
  if (failed || !pidfd_.valid()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    errno = code;
    throw_errno(failed ? "execve" : "pidfd_open", options.program);
  }
}

Process::Process(Process&& other) noexcept
    : pid_(other.pid_),
      own_group_(other.own_group_),
      pidfd_(std::move(other.pidfd_)),
      status_(other.status_) {
  other.pid_ = -1;
}

Process::~Process() {
  if (pid_ < 0 || status_) return;
  signal_all(SIGKILL);
  signal(SIGKILL);
  wait(Clock::now() + kReapTime);
}

std::optional<ExitStatus> Process::wait(Clock::time_point deadline) {
  if (status_) return status_;
  if (!store::wait_ready(pidfd_.get(), POLLIN, deadline)) return std::nullopt;
  // Ended but not reaped, so its number cannot belong to anybody else yet.
  signal_all(SIGKILL);
  siginfo_t info{};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0) {
    throw_errno("waitid", std::to_string(pid_));
  }
  status_ = ExitStatus{info.si_code != CLD_EXITED, info.si_status};
  return status_;
}

void Process::signal(int number) const {
  if (!status_ && pid_ > 0) kill(pid_, number);
}

void Process::signal_all(int number) const {
  if (!status_ && pid_ > 0 && own_group_) kill(-pid_, number);
}

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) throw_errno("readlink", "/proc/self/exe");
  path.resize(static_cast<size_t>(size));
  return path;
}

void restart_with_passive_waits(char** argv) {
  constexpr const char* kVariable = "OMP_WAIT_POLICY";
  if (std::getenv(kVariable) != nullptr) return;
  if (setenv(kVariable, "passive", 1) != 0) throw_errno("setenv", kVariable);
  const std::string program = own_program();
  execv(program.c_str(), argv);
  throw_errno("execv", program);
}

}  // namespace trireme::launch
