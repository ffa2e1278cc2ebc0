// The CPU as one rank's backend.
#pragma once

#include <memory>

#include "cpu/communicator_calls.h"
#include "cpu/device.h"
#include "cpu/op_table.h"
#include "device/backend.h"

namespace trireme::cpu {

/// Rows of a micro-batch are padded to multiples of this.
inline constexpr int64_t kTokenMultiple = 16;

class Backend final : public device::Backend {
 public:
  /// `num_threads` of the rank's operations.
  Backend(std::unique_ptr<comm::Communicator> communicator, int num_threads,
          const DeviceOptions& options = {});

  device::Device& device() override { return device_; }
  comm::Communicator& communicator() override { return *communicator_; }
  const ops::OpSizing& op_sizing() const override { return op_sizing_; }
  const comm::CommSizing& comm_sizing() const override { return comm_sizing_; }
  int64_t token_multiple() const override { return kTokenMultiple; }
  std::vector<std::pair<std::string, std::string>> facts() const override;
  void prepare(const ops::OpCall& call) override { cpu::prepare(call, ops_); }
  /// A model has some 15 products a size, and 1024 are kept (op_table.h).
  int64_t sizes_to_prepare() const override { return 64; }

 private:
  OpContext ops_;
  OpSizing op_sizing_;
  CommSizing comm_sizing_;
  std::unique_ptr<comm::Communicator> communicator_;
  Device device_;
};

}  // namespace trireme::cpu
