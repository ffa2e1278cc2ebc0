// How a process finds the others of its job.
#pragma once

#include <chrono>
#include <functional>
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
  /// Until all ranks have met.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

/// Where a communicator finds its peers.
struct MeetingPlace {
  comm::Store& store;
  const Ranks& ranks;
  /// The address by which peers on other hosts reach this process.
  std::string host;
  std::chrono::milliseconds connect_timeout;
};
/// A backend's way to make the communicator of this rank (app/ gives it: bodies of the contracts
/// are not known here). Called for a single process too.
using MakeCommunicator = std::function<std::unique_ptr<comm::Communicator>(const MeetingPlace&)>;

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

/// This process's place in the job. Members end in reverse order; rank 0 of a job without our
/// launcher hosts the store and, in the end, keeps it for ranks that still need it: up to 5
/// seconds, 1 after an error.
class World {
 public:
  World(const Ranks& ranks, const WorldSettings& settings, const Environment& environment,
        const MakeCommunicator& make);
  ~World();

  const Ranks& ranks() const { return ranks_; }
  comm::Store& store() { return *store_; }
  comm::Communicator& communicator() { return *communicator_; }

 private:
  void join_launched(const Environment& environment);
  void join_foreign(const Environment& environment);
  std::unique_ptr<store::Client> connect_with_file(store::ClientOptions options,
                                                   const std::string& path);

  const Ranks ranks_;
  const WorldSettings settings_;
  LauncherWatch watch_;
  std::unique_ptr<store::Server> server_;  // when this rank hosts it
  std::unique_ptr<comm::Store> store_;
  std::string host_ = "127.0.0.1";
  std::unique_ptr<comm::Communicator> communicator_;
};

/// Meets the other ranks: through the launcher's store (TRIREME_STORE), else through one that rank
/// 0 hosts on MASTER_ADDR:MASTER_PORT. Throws CommError when they do not come, ConfigError for a
/// port in use or an unusable token file.
std::unique_ptr<World> connect_world(const Ranks& ranks, const WorldSettings& settings,
                                     const MakeCommunicator& make,
                                     const Environment& environment = process_environment());

}  // namespace trireme::launch
