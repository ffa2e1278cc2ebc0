// One rank's device with everything that belongs to it: what `app` chooses and the run uses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "ops/op.h"

namespace trireme::device {

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
  /// Lines for the banner: (name, value).
  virtual std::vector<std::pair<std::string, std::string>> facts() const = 0;
};

}  // namespace trireme::device
