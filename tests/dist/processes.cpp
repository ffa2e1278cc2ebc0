#include "dist/processes.h"

#include <fcntl.h>
#include <poll.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace trireme::test {

namespace fs = std::filesystem;

using store::Clock;
using store::Fd;

Running::Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe", "test");
  reader.reset(ends[0]);
  writer.reset(ends[1]);
}

namespace {

launch::SpawnOptions spawn_options(const std::string& program,
                                   const std::vector<std::string>& arguments,
                                   const std::map<std::string, std::string>& environment, int out,
                                   int err) {
  launch::SpawnOptions options;
  options.program = program;
  options.arguments = arguments;
  options.environment = environment;
  options.standard_output = out;
  options.standard_error = err;
  return options;
}

}  // namespace

Running::Running(const std::string& program, const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment)
    : Running(program, arguments, environment, Pipe(), Pipe()) {}

Running::Running(const std::string& program, const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment, Pipe out, Pipe err)
    : out_reader_(std::move(out.reader)),
      err_reader_(std::move(err.reader)),
      process_(spawn_options(program, arguments, environment, out.writer.get(), err.writer.get())) {
}

bool Running::read_more(Clock::time_point deadline) {
  if (!out_reader_.valid() && !err_reader_.valid()) return false;
  pollfd entries[2] = {{out_reader_.get(), POLLIN, 0}, {err_reader_.get(), POLLIN, 0}};
  if (poll(entries, 2, store::poll_timeout(deadline)) <= 0) return Clock::now() < deadline;
  char bytes[4096];
  for (const int k : {0, 1}) {
    if (entries[k].revents == 0) continue;
    const ssize_t got = read(entries[k].fd, bytes, sizeof bytes);
    if (got > 0) {
      (k == 0 ? out_ : err_).append(bytes, static_cast<size_t>(got));
    } else {
      (k == 0 ? out_reader_ : err_reader_).reset();
    }
  }
  return true;
}

std::string Running::line_with(const std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    size_t begin = 0;
    for (size_t end; (end = out_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = out_.substr(begin, end - begin);
      if (line.find(text) == std::string::npos) continue;
      return line;
    }
    if (!read_more(deadline)) {
      ADD_FAILURE() << "no line with '" << text << "' in:\n" << out_ << "\nstderr:\n" << err_;
      throw CommError("the program under test did not answer");
    }
  }
}

int Running::finish() {
  const auto deadline = Clock::now() + kPatience;
  while (read_more(deadline)) {
  }
  const auto status = process_.wait(deadline);
  if (!status) {
    ADD_FAILURE() << "still running; stderr:\n" << err_;
    return -1;
  }
  return status->exit_code();
}

Fd watch_pid(int pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) throw_errno("pidfd_open", std::to_string(pid));
  return fd;
}

std::map<std::string, std::string> rank_environment(int rank, int world_size, int port) {
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

int free_port() { return store::bound_port(store::listen_on({"127.0.0.1", 0}, 1)); }

int quiet_port(int count) {
  for (int port = 21000 + getpid() % 9000;; ++port) {
    try {
      for (int next = 0; next < count; ++next) store::listen_on({"127.0.0.1", port + next}, 1);
      return port;
    } catch (const CommError&) {
      continue;
    }
  }
}

std::map<int, int> read_pids(Running& running, int size) {
  std::map<int, int> pids;
  for (int rank = 0; rank < size; ++rank) {
    const std::string line = running.line_with(fmt::format("rank {} pid ", rank));
    pids[rank] = std::stoi(line.substr(line.rfind(' ') + 1));
  }
  return pids;
}

std::vector<int> children_of(int parent) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream stream(entry.path() / "stat");
    std::string line;
    if (!std::getline(stream, line)) continue;
    int parent_of_it = 0;
    const std::string rest = line.substr(line.rfind(')') + 1);
    if (std::sscanf(rest.c_str(), " %*c %d", &parent_of_it) == 1 && parent_of_it == parent) {
      found.push_back(std::stoi(entry.path().filename()));
    }
  }
  return found;
}

}  // namespace trireme::test
