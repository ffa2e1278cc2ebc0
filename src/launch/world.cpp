#include "launch/world.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "launch/meeting.h"
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
constexpr auto kOneTry = std::chrono::seconds(1);

int64_t number_or(const Environment& environment, std::string_view name, int64_t otherwise) {
  const auto text = environment(name);
  return text ? std::strtoll(text->c_str(), nullptr, 10) : otherwise;
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
  options.identity.epoch = static_cast<uint64_t>(restart_count(environment));
  options.identity.token = store::read_token(*token_file);
  options.connect_timeout = settings_.connect_timeout;
  auto client = std::make_unique<store::Client>(options);
  host_ = client->local_host();
  store_ = std::move(client);
}

void World::join_foreign(const Environment& environment) {
  store::ClientOptions options;
  options.identity.job = ranks_.job;
  options.identity.epoch = static_cast<uint64_t>(restart_count(environment));
  options.connect_timeout = settings_.connect_timeout;
  options.endpoint = {ranks_.master_addr, ranks_.master_port};
  if (const auto token_file = environment(kTokenFile)) {
    // Nothing but the port can be known then: one beside that of the launcher's store.
    if (ranks_.port_taken) options.endpoint.port += 1 + static_cast<int>(options.identity.epoch);
    if (options.endpoint.port == 0) {
      throw ConfigError("MASTER_PORT", "unset", fmt::format("set it, for {} is set", kTokenFile));
    }
    options.identity.token = store::read_token(*token_file);
    if (ranks_.rank == 0) host_store(options.endpoint, options.identity);
    meet(std::make_unique<store::Client>(options));
    return;
  }
  if (!ranks_.one_host() && settings_.shared_folder.empty()) {
    throw ConfigError(kTokenFile, "unset",
                      "set it to a file with mode 0600 that holds one secret for all hosts");
  }
  const std::string path =
      meeting_path(ranks_.job, ranks_.one_host() ? "" : settings_.shared_folder, environment);
  if (ranks_.rank == 0) {
    Meeting meeting{store::make_token(), {}};
    options.identity.token = meeting.token;
    if (ranks_.port_taken) options.endpoint.port = 0;
    const store::Endpoint hosted = host_store(options.endpoint, options.identity);
    if (options.endpoint.port == 0) meeting.endpoint = hosted;
    options.endpoint = hosted;
    if (!ranks_.one_host()) make_folders(settings_.shared_folder);
    write_meeting(path, meeting);
    meet(std::make_unique<store::Client>(options));
  } else {
    meet(connect_with_file(options, path));
  }
  // The file is of use until every rank has read it.
  if (store_->add("world/joined", 1) == ranks_.world_size) std::filesystem::remove(path);
}

store::Endpoint World::host_store(const store::Endpoint& endpoint,
                                  const store::JobIdentity& identity) {
  store::ServerOptions server;
  server.endpoint = endpoint;
  server.identity = identity;
  try {
    server_ = std::make_unique<store::Server>(server);
  } catch (const CommError& error) {
    throw ConfigError("MASTER_PORT", std::to_string(endpoint.port), error.what());
  }
  return server_->endpoint();
}

void World::meet(std::unique_ptr<store::Client> client) {
  host_ = client->local_host();
  store_ = std::move(client);
}

/// Tries until the file is there and fits: it may still be that of an earlier job.
std::unique_ptr<store::Client> World::connect_with_file(store::ClientOptions options,
                                                        const std::string& path) {
  const auto deadline = Clock::now() + settings_.connect_timeout;
  std::string refusal =
      fmt::format("rank 0 has not written {}: it did not start{}", path,
                  ranks_.one_host() ? "" : ", or output_dir is not a folder that all hosts share");
  for (; Clock::now() < deadline; std::this_thread::sleep_for(kPause)) {
    const auto meeting = read_meeting(path);
    if (!meeting) continue;
    options.identity.token = meeting->token;
    if (meeting->endpoint) options.endpoint = *meeting->endpoint;
    options.connect_timeout = std::min<std::chrono::milliseconds>(
        kOneTry, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    try {
      return std::make_unique<store::Client>(options);
    } catch (const CommError& error) {
      refusal = error.what();
    }
  }
  throw CommError(refusal);
}

std::unique_ptr<World> connect_world(const Ranks& ranks, const WorldSettings& settings,
                                     const Environment& environment) {
  return std::make_unique<World>(ranks, settings, environment);
}

}  // namespace trireme::launch
