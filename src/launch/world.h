// How a process finds the others of its job.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "comm/comm.h"
#include "launch/ranks.h"
#include "store/client.h"
#include "store/server.h"

namespace trireme::launch {

struct WorldSettings {
  /// A folder that all hosts share (output_dir): where rank 0 leaves the token for the others when
  /// the ranks are on several hosts and TRIREME_TOKEN_FILE is not set.
  std::string shared_folder;
  /// Until the store is reached.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

/// Ends this process when its launcher is gone, whatever ended that: the kernel's parent-death
/// signal is lost where a process between them dies first, a pipe's end is not.
class LauncherWatch {
 public:
  /// Watches the descriptor of TRIREME_CONTROL_FD; nothing without it.
  explicit LauncherWatch(const Environment& environment);
  ~LauncherWatch();
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

 private:
  store::Fd control_;
  store::Fd stop_;
  std::thread thread_;
};

/// This process's place in the job. Make it first and let it end last: rank 0 of a job without our
/// launcher hosts the store and keeps it for ranks that still need it, up to 5 seconds, 1 after an
/// error.
class World {
 public:
  World(const Ranks& ranks, const WorldSettings& settings, const Environment& environment);
  ~World();

  const Ranks& ranks() const { return ranks_; }
  comm::Store& store() { return *store_; }
  /// The address by which ranks on other hosts reach this process.
  const std::string& host() const { return host_; }

 private:
  void join_launched(const Environment& environment);
  void join_foreign(const Environment& environment);
  store::Endpoint host_store(const store::Endpoint& endpoint, const store::JobIdentity& identity);
  std::unique_ptr<store::Client> connect_with_file(store::ClientOptions options,
                                                   const std::string& path);
  void meet(std::unique_ptr<store::Client> client);

  const Ranks ranks_;
  const WorldSettings settings_;
  LauncherWatch watch_;
  std::unique_ptr<store::Server> server_;  // when this rank hosts it
  std::unique_ptr<comm::Store> store_;
  std::string host_ = "127.0.0.1";
};

/// Meets the other ranks in the launcher's store (TRIREME_STORE), else in one that rank 0 hosts on
/// the master's port, or on a free one where that is not known or the launcher's own; a single
/// process has a store of its own. The token and such a port are told by a file (meeting.h), unless
/// TRIREME_TOKEN_FILE names one with a token; the port next to the launcher's is then taken. A
/// backend's communicator then finds its peers through the store. Throws CommError when it cannot
/// be reached, ConfigError for a port in use or an unusable token file.
std::unique_ptr<World> connect_world(const Ranks& ranks, const WorldSettings& settings,
                                     const Environment& environment = process_environment());

}  // namespace trireme::launch
