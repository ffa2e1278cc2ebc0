// The in-process communicator: ranks are threads of one process and read each other's memory.
// Its results equal those of the communicator between processes bit for bit.
#pragma once

#include <chrono>
#include <memory>

#include "comm/comm.h"

namespace trireme::cpu {

class InProcessState;

/// The world that threads join. A rank that destroys its communicator, or aborts it, has left: a
/// peer that waits for it, now or later, throws CommError at once.
class InProcessWorld {
 public:
  /// `timeout` bounds the wait for the peers of one call.
  explicit InProcessWorld(int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));

  /// The communicator of `rank`; once per rank, from any thread. It may outlive the world.
  std::unique_ptr<comm::Communicator> join(int rank);

 private:
  std::shared_ptr<InProcessState> state_;
};

}  // namespace trireme::cpu
