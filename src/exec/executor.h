// Runs the programs of a plan on a device: the same schedule, every step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "plan/plan.h"

namespace trireme::exec {

/// What the run does at a port. Called in stream order on a stream's thread: must not call the
/// executor. `data` is the port's pinned buffer; `run` is the number given to Executor::run.
class PortHandler {
 public:
  virtual ~PortHandler() = default;
  virtual void handle(const plan::Port& port, std::byte* data, int64_t run,
                      int32_t micro_batch) = 0;
};

/// Told, on the host thread, what is about to be launched and what was.
class EntryObserver {
 public:
  virtual ~EntryObserver() = default;
  /// The entry's waits are launched; its own work follows, up to end().
  virtual void begin(const plan::Program& program, const plan::Entry& entry, int64_t run) = 0;
  virtual void end(const plan::Entry& entry) = 0;
};

struct ExecutorOptions {
  /// Fills released memory with NaN, so that a read too late shows.
  bool poison = false;
  /// May be null; outlives the executor.
  EntryObserver* observer = nullptr;
};

/// Names one run of a program.
using Ticket = int64_t;

/// Owns the arenas: allocates them at construction, exactly as planned, and nothing afterwards.
/// All methods belong to one host thread.
class Executor {
 public:
  /// Makes the communicator's groups: collective over the world. Everything is borrowed and must
  /// outlive the executor. The plan must not move.
  Executor(const plan::Plan& plan, device::Device& device, comm::Communicator& communicator,
           PortHandler& ports, const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Enqueues a program of the plan and returns; `extents` has one entry a micro-batch. Programs
  /// run one after the other. `run` is handed to the ports.
  Ticket run(const plan::Program& program, std::span<const ops::Extent> extents, int64_t run);
  /// Blocks until that run is done. At most kTicketsKept runs may have been enqueued after it.
  /// Throws what went wrong in it.
  void wait(Ticket ticket);
  /// run() and wait() for programs without micro-batches.
  void finish(const plan::Program& program, int64_t run = 0);

  /// Every operation that `program` launches for a micro-batch of `extent`, each kind of phase
  /// once; nothing is launched. For backends that ready or measure what they will run.
  void for_each_call(const plan::Program& program, const ops::Extent& extent,
                     const std::function<void(const ops::OpCall&)>& visit);

  static constexpr int64_t kTicketsKept = 3;

 private:
  class Prepared;
  Prepared& prepared(const plan::Program& program);
  void make_groups(comm::Communicator& communicator);

  const plan::Plan& plan_;
  device::Device& device_;
  PortHandler& ports_;
  ExecutorOptions options_;
  std::byte* arenas_[device::kNumSpaces] = {};
  std::array<int, plan::kNumAxes> groups_{};  // communicator's group of each axis
  std::map<const plan::Program*, std::unique_ptr<Prepared>> prepared_;
  Ticket next_ticket_ = 0;
  int ticket_events_ = 0;  // first of kTicketsKept + 1 events
  int phase_events_ = 0;   // first of those inside phases
};

}  // namespace trireme::exec
