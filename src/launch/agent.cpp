#include "launch/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "launch/process.h"
#include "launch/variables.h"
#include "launch/worker_output.h"
#include "store/server.h"

namespace trireme::launch {
namespace {

using store::Clock;
using store::Fd;

constexpr std::array kForwarded = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};
constexpr auto kReapTime = std::chrono::seconds(5);

/// Turns signals into a readable descriptor; the former mask comes back at the end.
class SignalInbox {
 public:
  SignalInbox() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : kForwarded) sigaddset(&set, number);
    pthread_sigmask(SIG_BLOCK, &set, &former_);
    fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_.valid()) throw_errno("signalfd", "forwarded signals");
  }
  ~SignalInbox() { pthread_sigmask(SIG_SETMASK, &former_, nullptr); }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const { return fd_.get(); }
  std::optional<int> next() const {
    signalfd_siginfo info;
    if (read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t former_{};
  Fd fd_;
};

struct Worker {
  int rank = 0;
  std::unique_ptr<Process> process;
  std::unique_ptr<WorkerOutput> out;  // null when its standard output goes straight through
  std::unique_ptr<WorkerOutput> err;

  const std::string& last_line() const {
    return err->last_line().empty() && out ? out->last_line() : err->last_line();
  }
};

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe", "worker");
  return {Fd(ends[0]), Fd(ends[1])};
}

/// A file without a name that holds the token; workers reach it by the inherited descriptor, and
/// nothing of it can be left behind.
Fd token_in_memory(const std::string& token) {
  Fd fd(memfd_create("trireme-token", MFD_CLOEXEC));
  if (!fd.valid() || fchmod(fd.get(), 0600) != 0 ||
      write(fd.get(), token.data(), token.size()) != static_cast<ssize_t>(token.size())) {
    throw_errno("memfd_create", "trireme-token");
  }
  return fd;
}

Fd open_log(const std::filesystem::path& folder, const char* name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path file = folder / name;
  Fd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    throw ConfigError("log_dir", file.string(),
                      fmt::format("it cannot be written ({}); give another folder",
                                  error ? error.message() : std::strerror(errno)));
  }
  return fd;
}

class Agent {
 public:
  Agent(const LaunchOptions& options, const std::vector<std::string>& arguments);
  int run();

 private:
  void run_once();
  void open_store();
  bool is_logged(int rank, int stream) const;
  std::unique_ptr<WorkerOutput> output_of(int rank, int stream, Fd reader) const;
  void start(int rank);
  bool starts_again() const;
  void watch();
  void pass_on(int number);
  void judge(const std::vector<Worker*>& ended);
  void kill_the_rest();
  bool all_ended() const;
  void signal_running(int number) const;
  void report(const Worker& worker);

  const LaunchOptions& options_;
  const std::vector<std::string>& arguments_;
  SignalInbox signals_;
  const std::string token_;
  const std::string job_;
  std::unique_ptr<store::Server> server_;
  Fd token_fd_;
  Fd control_reader_, control_writer_;
  int restarts_ = 0;
  bool asked_to_end_ = false;
  // Of the ranks that run now:
  std::vector<Worker> workers_;
  std::optional<int> failure_;
  std::optional<Clock::time_point> kill_at_;
};

std::string job_token() {
  const char* const path = std::getenv(kTokenFile);
  return path != nullptr && *path != '\0' ? store::read_token(path) : store::make_token();
}

Agent::Agent(const LaunchOptions& options, const std::vector<std::string>& arguments)
    : options_(options),
      arguments_(arguments),
      token_(job_token()),
      job_(store::make_token().substr(0, 16)) {
  open_store();
  token_fd_ = token_in_memory(token_);
  std::tie(control_reader_, control_writer_) = make_pipe();
}

void Agent::open_store() {
  server_.reset();  // gives the port back
  store::ServerOptions server;
  server.endpoint = {options_.master_addr, options_.master_port};
  server.identity.token = token_;
  server.identity.job = job_;
  server.identity.epoch = static_cast<uint64_t>(restarts_);
  try {
    server_ = std::make_unique<store::Server>(server);
  } catch (const CommError& error) {
    throw ConfigError("master_port", std::to_string(options_.master_port),
                      fmt::format("{}; give another port, or none for a free one", error.what()));
  }
}

bool Agent::is_logged(int rank, int stream) const {
  return ((options_.redirected.of(rank) | options_.teed.of(rank)) & stream) != 0;
}

std::unique_ptr<WorkerOutput> Agent::output_of(int rank, int stream, Fd reader) const {
  const bool is_error = stream == kStandardError;
  const bool shown = (options_.redirected.of(rank) & stream) == 0 &&
                     (options_.shown_ranks.empty() || options_.shown_ranks.contains(rank));
  const int to = is_error ? STDERR_FILENO : STDOUT_FILENO;
  Fd log;
  if (is_logged(rank, stream)) {
    log = open_log(fmt::format("{}/{}/attempt_{}/{}", options_.log_dir, job_, restarts_, rank),
                   is_error ? "stderr.log" : "stdout.log");
  }
  const bool prefixed = options_.prefix_output;
  return std::make_unique<WorkerOutput>(std::move(reader), shown ? to : -1,
                                        prefixed ? fmt::format("[rank {}] ", rank) : "",
                                        std::move(log));
}

void Agent::start(int rank) {
  Worker& worker = workers_.emplace_back();
  worker.rank = rank;
  SpawnOptions spawn;
  spawn.program = options_.program.empty() ? own_program() : options_.program;
  spawn.arguments = arguments_;
  auto [err_reader, err_writer] = make_pipe();
  spawn.standard_error = err_writer.get();
  worker.err = output_of(rank, kStandardError, std::move(err_reader));
  Fd out_writer;
  if (options_.prefix_output || !options_.shown_ranks.empty() || is_logged(rank, kStandardOutput)) {
    auto [reader, writer] = make_pipe();
    out_writer = std::move(writer);
    spawn.standard_output = out_writer.get();
    worker.out = output_of(rank, kStandardOutput, std::move(reader));
  }
  const store::Endpoint endpoint = server_->endpoint();
  const std::string size = std::to_string(options_.num_processes);
  spawn.inherited = {token_fd_.get(), control_reader_.get()};
  spawn.environment = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"MASTER_ADDR", endpoint.host},
      {"MASTER_PORT", std::to_string(endpoint.port)},
      {"OMP_WAIT_POLICY", "passive"},
      {kStore, store::to_string(endpoint)},
      {kTokenFile, fmt::format("/proc/self/fd/{}", token_fd_.get())},
      {kJob, job_},
      {kEpoch, std::to_string(restarts_)},
      {kControl, std::to_string(control_reader_.get())},
  };
  worker.process = std::make_unique<Process>(spawn);
}

int Agent::run() {
  if (options_.redirected.any() || options_.teed.any()) {
    fmt::print(stderr, "trireme launch: logs of the ranks are in {}/{}\n", options_.log_dir, job_);
  }
  run_once();
  while (starts_again()) {
    ++restarts_;
    fmt::print(stderr, "trireme launch: starting all ranks again ({} of {})\n", restarts_,
               options_.max_restarts);
    open_store();
    run_once();
  }
  return failure_.value_or(0);
}

/// Until all ranks have ended.
void Agent::run_once() {
  workers_.clear();
  failure_.reset();
  kill_at_.reset();
  workers_.reserve(static_cast<size_t>(options_.num_processes));
  for (int rank = 0; rank < options_.num_processes; ++rank) start(rank);
  while (!all_ended()) watch();
  for (Worker& worker : workers_) {
    worker.err->drain();
    if (worker.out) worker.out->drain();
  }
}

bool Agent::starts_again() const {
  return failure_ && *failure_ != kWrongInput && !asked_to_end_ &&
         restarts_ < options_.max_restarts;
}

bool Agent::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.process->status().has_value(); });
}

/// Waits for output, signals, ends of workers or the end of the grace, and handles them.
void Agent::watch() {
  std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
  for (const Worker& worker : workers_) {
    const bool running = !worker.process->status();
    entries.push_back({running ? worker.process->ended_fd() : -1, POLLIN, 0});
    entries.push_back({worker.err->fd(), POLLIN, 0});
    entries.push_back({worker.out ? worker.out->fd() : -1, POLLIN, 0});
  }
  const auto wake = kill_at_.value_or(Clock::now() + std::chrono::minutes(1));
  if (poll(entries.data(), entries.size(), store::poll_timeout(wake)) < 0 && errno != EINTR) {
    throw_errno("poll", "workers");
  }
  while (const auto number = signals_.next()) pass_on(*number);
  std::vector<Worker*> ended;
  for (size_t k = 0; k < workers_.size(); ++k) {
    Worker& worker = workers_[k];
    if (entries[3 * k + 2].revents != 0) worker.err->read_some();
    if (entries[3 * k + 3].revents != 0) worker.out->read_some();
    if (entries[3 * k + 1].revents == 0) continue;
    worker.process->wait(Clock::now());
    ended.push_back(&worker);
  }
  judge(ended);
  if (kill_at_ && Clock::now() >= *kill_at_) kill_the_rest();
}

/// Of several that ended at once, one killed by a signal is the cause, and the others fell for it.
void Agent::judge(const std::vector<Worker*>& ended) {
  const Worker* first = nullptr;
  for (const Worker* worker : ended) {
    const ExitStatus status = *worker->process->status();
    if (status.exit_code() == 0) continue;
    if (first == nullptr || (status.signaled && !first->process->status()->signaled)) {
      first = worker;
    }
  }
  if (first == nullptr || failure_) return;
  failure_ = first->process->status()->exit_code();
  report(*first);
  signal_running(SIGTERM);
  kill_at_ = Clock::now() + options_.grace;
}

void Agent::report(const Worker& worker) {
  worker.err->drain();
  if (worker.out) worker.out->drain();
  // Who leaves by itself has just said why.
  const bool shown = !worker.process->status()->signaled && worker.err->is_shown();
  const std::string line = shown ? "" : worker.last_line();
  fmt::print(stderr, "trireme launch: rank {} (pid {}) {}{}{}\n", worker.rank,
             worker.process->pid(), worker.process->status()->words(),
             line.empty() ? "" : "; its last line: ", line);
}

void Agent::pass_on(int number) {
  asked_to_end_ = asked_to_end_ || number != SIGUSR1;
  signal_running(number);
}

void Agent::signal_running(int number) const {
  for (const Worker& worker : workers_) worker.process->signal(number);
}

void Agent::kill_the_rest() {
  for (const Worker& worker : workers_) worker.process->signal_all(SIGKILL);
  const auto deadline = Clock::now() + kReapTime;
  for (const Worker& worker : workers_) {
    if (worker.process->wait(deadline)) continue;
    throw DeviceError(fmt::format("rank {} (pid {}) could not be ended: it is stuck in the kernel",
                                  worker.rank, worker.process->pid()));
  }
}

}  // namespace

int launch(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  if (options.num_processes < 1) {
    throw ConfigError("nproc_per_node", std::to_string(options.num_processes),
                      "start at least one process");
  }
  return Agent(options, arguments).run();
}

}  // namespace trireme::launch
