#include "launch/world.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "base/error.h"
#include "launch/variables.h"
#include "store/memory_store.h"
#include "store/thread.h"

namespace trireme::launch {
namespace {

using store::Clock;

constexpr std::string_view kLeft = "world/left";
constexpr auto kFarewellTime = std::chrono::seconds(5);
constexpr auto kFarewellAfterError = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(20);

int64_t number_or(const Environment& environment, std::string_view name, int64_t otherwise) {
  const auto text = environment(name);
  return text ? std::strtoll(text->c_str(), nullptr, 10) : otherwise;
}

/// Which restart of the job this is, as its launcher counts.
int64_t epoch_of(const Environment& environment) {
  for (const char* name : {kEpoch, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (environment(name)) return number_or(environment, name, 0);
  }
  return 0;
}

std::string job_of(const Environment& environment, const store::Endpoint& endpoint) {
  std::string job = store::to_string(endpoint);
  for (const char* name : {kJob, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    if (const auto text = environment(name)) job += "/" + *text;
  }
  return job;
}

/// A folder that only this user can enter, made when absent.
std::string private_folder(const Environment& environment) {
  const auto runtime = environment("XDG_RUNTIME_DIR");
  const std::string path =
      runtime ? *runtime + "/trireme"
              : fmt::format("{}/trireme-{}", std::filesystem::temp_directory_path().string(),
                            geteuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw_errno("mkdir", path);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) throw_errno("lstat", path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    throw ConfigError("token folder", path, "it must be yours alone (mode 0700); remove it");
  }
  return path;
}

std::unique_ptr<store::Client> connect_with_token(store::ClientOptions options,
                                                  const std::string& path) {
  options.identity.token = store::read_token(path);
  return std::make_unique<store::Client>(options);
}

}  // namespace

LauncherWatch::LauncherWatch(const Environment& environment) {
  const int fd = static_cast<int>(number_or(environment, kControl, -1));
  if (fd < 0) return;
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw ConfigError(kControl, std::to_string(fd), "it is no open descriptor; unset it");
  }
  control_.reset(fd);
  stop_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) throw_errno("eventfd", "launcher watch");
  thread_ = store::start_thread("launcher-watch", [this] {
    pollfd entries[2] = {{control_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (poll(entries, 2, -1) < 0) {
    }
    if (entries[1].revents != 0) return;
    kill(getpid(), SIGKILL);
  });
}

LauncherWatch::~LauncherWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);  // cannot fail: the counter starts at 0
  thread_.join();
}

World::World(const Ranks& ranks, const WorldSettings& settings, const Environment& environment)
    : ranks_(ranks), settings_(settings), watch_(environment) {
  if (ranks.world_size == 1) {
    store_ = std::make_unique<store::MemoryStore>();
  } else if (environment(kStore)) {
    join_launched(environment);
  } else {
    join_foreign(environment);
  }
}

World::~World() {
  if (ranks_.world_size == 1) return;
  try {
    int64_t left = store_->add(kLeft, 1);
    const bool failed = std::uncaught_exceptions() > 0;
    const auto deadline = Clock::now() + (failed ? kFarewellAfterError : kFarewellTime);
    while (server_ && left < ranks_.world_size && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      left = store_->add(kLeft, 0);
    }
  } catch (const CommError&) {
    // The store has gone before: nobody is left to wait for.
  }
}

void World::join_launched(const Environment& environment) {
  store::ClientOptions options;
  options.endpoint = store::parse_endpoint(kStore, *environment(kStore));
  const auto token_file = environment(kTokenFile);
  if (!token_file) throw ConfigError(kTokenFile, "unset", "the launcher sets it; do not unset it");
  options.identity.job = environment(kJob).value_or("");
  options.identity.epoch = static_cast<uint64_t>(epoch_of(environment));
  options.connect_timeout = settings_.connect_timeout;
  auto client = connect_with_token(options, *token_file);
  host_ = client->local_host();
  store_ = std::move(client);
}

void World::join_foreign(const Environment& environment) {
  store::ClientOptions options;
  options.endpoint = {ranks_.master_addr, ranks_.master_port};
  const int64_t epoch = epoch_of(environment);
  // torchrun's agent may already own MASTER_PORT.
  if (environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") {
    options.endpoint.port += 1 + static_cast<int>(epoch);
  }
  options.identity.job = job_of(environment, options.endpoint);
  options.identity.epoch = static_cast<uint64_t>(epoch);
  options.connect_timeout = settings_.connect_timeout;
  const auto given = environment(kTokenFile);
  if (!given && !ranks_.one_host() && settings_.shared_folder.empty()) {
    throw ConfigError(kTokenFile, "unset",
                      "set it to a file with mode 0600 that holds one secret for all hosts");
  }
  const std::string name =
      "token-" + store::to_hex(store::sha256(options.identity.job)).substr(0, 16);
  const std::string path = given               ? *given
                           : ranks_.one_host() ? private_folder(environment) + "/" + name
                                               : settings_.shared_folder + "/." + name;
  if (ranks_.rank == 0) {
    if (!given) {
      std::filesystem::remove(path);  // of a job that could not clean up
      store::write_token(path, store::make_token());
    }
    store::ServerOptions server;
    server.endpoint = options.endpoint;
    server.identity = options.identity;
    server.identity.token = store::read_token(path);
    try {
      server_ = std::make_unique<store::Server>(server);
    } catch (const CommError& error) {
      throw ConfigError("MASTER_PORT", std::to_string(options.endpoint.port), error.what());
    }
  }
  auto client = given ? connect_with_token(options, path) : connect_with_file(options, path);
  host_ = client->local_host();
  store_ = std::move(client);
  // The file is of use until every rank has read it.
  if (store_->add("world/joined", 1) == ranks_.world_size && !given) {
    std::filesystem::remove(path);
  }
}

/// Tries until the file is there and fits: it may still be that of an earlier job.
std::unique_ptr<store::Client> World::connect_with_file(store::ClientOptions options,
                                                        const std::string& path) {
  const auto deadline = Clock::now() + settings_.connect_timeout;
  std::string refusal = fmt::format("rank 0 has not written the token file {}", path);
  while (Clock::now() < deadline) {
    options.connect_timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      if (std::filesystem::exists(path)) return connect_with_token(options, path);
    } catch (const store::Refused& error) {
      refusal = error.what();
    }
    std::this_thread::sleep_for(kPause);
  }
  throw CommError(refusal);
}

std::unique_ptr<World> connect_world(const Ranks& ranks, const WorldSettings& settings,
                                     const Environment& environment) {
  return std::make_unique<World>(ranks, settings, environment);
}

}  // namespace trireme::launch
