// The communicator between processes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/comm.h"

namespace trireme::cpu {

struct WorldOptions {
  int rank = 0;
  int world_size = 1;
  /// Interface on which ranks of other hosts reach this one (unused when all share one host).
  std::string host = "127.0.0.1";
  /// A call in which no byte moves for so long fails.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Bounds each step of meeting the other ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

/// Meets the other ranks through `store`, which must outlive the communicator (it also tells
/// survivors why a rank left). Collective over the world; CommError when a rank does not come.
/// Neither threads nor memory are taken by later calls.
std::unique_ptr<comm::Communicator> connect_processes(comm::Store& store,
                                                      const WorldOptions& options);

}  // namespace trireme::cpu
