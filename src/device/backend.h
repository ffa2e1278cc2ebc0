// One rank's device with everything that belongs to it: what `app` chooses and the run uses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "ops/op.h"

namespace trireme::device {

/// Device memory in bytes; all 0 where the device is the host.
struct MemoryUse {
  int64_t total = 0;
  int64_t free = 0;
  int64_t arenas = 0;
  int64_t expected_besides = 0;  // by the plan's rule
  /// Contexts, kernels, libraries, other processes.
  int64_t besides() const { return total - free - arenas; }
};

/// Made per rank, destroyed after the session that borrows its parts.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device& device() = 0;
  virtual comm::Communicator& communicator() = 0;
  /// Pure rules: also valid for a plan of other ranks.
  virtual const ops::OpSizing& op_sizing() const = 0;
  virtual const comm::CommSizing& comm_sizing() const = 0;
  /// Micro-batches are padded to multiples of so many tokens.
  virtual int64_t token_multiple() const = 0;
  /// Bytes of logits worth computing at one time: enough rows for products at full speed.
  virtual int64_t loss_chunk_bytes() const { return int64_t{128} << 20; }
  /// Lines for the banner: (name, value).
  virtual std::vector<std::pair<std::string, std::string>> facts() const = 0;
  virtual MemoryUse memory() const { return {}; }

  // What a backend that chooses among algorithms adds; elsewhere these do nothing. For the thread
  // that launches, while nothing is in flight.
  /// Readies what a launch of `call` would make at its first use; data is not read. Also while a
  /// program loads.
  virtual void prepare(const ops::OpCall& call) { (void)call; }
  /// Of how many sizes of micro-batches it is worth readying the calls before the first step.
  virtual int64_t sizes_to_prepare() const { return 0; }
  /// Measures what may run `call` and keeps the fastest for its size class. Operands are real
  /// memory; outputs are overwritten. Blocks.
  virtual void tune(const ops::OpCall& call) { (void)call; }
  /// After the last tune(): keeps what was measured for other runs on this machine.
  virtual void keep_algorithms() {}
  /// What tune() chose, or found chosen, since the last use_algorithms().
  virtual std::string algorithms() const { return {}; }
  /// Takes such texts in place of measuring; of a call that several speak of, the first. Empty ones
  /// say nothing. Returns all that is in use from here on as one text: equal texts, equal bits.
  virtual std::string use_algorithms(std::span<const std::string> texts) {
    (void)texts;
    return {};
  }
  /// Sentences for the user about that, since the last call of this.
  virtual std::vector<std::string> take_notices() { return {}; }
};

}  // namespace trireme::device
