// The module's one entry, and what it makes: backends of one GPU each.
#pragma once

#include <memory>
#include <string>

#include "cuda/plan_rules.h"
#include "cuda/comm_sizing.h"
#include "cuda/device.h"
#include "cuda/matmul.h"
#include "cuda/nccl_communicator.h"
#include "cuda/op_table.h"
#include "device/backend_module.h"

namespace trireme::cuda {

/// One rank's GPU, communicators and operations.
class Backend final : public device::Backend {
 public:
  /// Makes `device` current on the calling thread. Collective over the world.
  Backend(int device, const device::RankSite& site, const std::string& prefix,
          const std::string& nccl_library);

  device::Device& device() override { return device_; }
  comm::Communicator& communicator() override { return communicator_; }
  const ops::OpSizing& op_sizing() const override { return op_sizing_; }
  const comm::CommSizing& comm_sizing() const override { return comm_sizing_; }
  int64_t token_multiple() const override { return kTokenMultiple; }
  int64_t loss_chunk_bytes() const override { return kLossChunkBytes; }
  std::vector<std::pair<std::string, std::string>> facts() const override;
  device::MemoryUse memory() const override;

  void prepare(const ops::OpCall& call) override { cuda::prepare(call, ops_); }
  void tune(const ops::OpCall& call) override { cuda::tune(call, ops_); }
  void keep_algorithms() override { ops_.matmuls().keep_algorithms(); }
  std::string algorithms() const override { return ops_.algorithms(); }
  std::string use_algorithms(std::span<const std::string> texts) override {
    return ops_.use_algorithms(texts);
  }
  std::vector<std::string> take_notices() override { return ops_.take_notices(); }

 private:
  const int device_id_;
  OpContext ops_;
  OpSizing op_sizing_;
  CommSizing comm_sizing_;
  NcclCommunicator communicator_;
  Device device_;
};

class BackendMaker final : public device::BackendMaker {
 public:
  explicit BackendMaker(const device::ModuleLibraries& libraries);
  int num_devices() const override { return num_devices_; }
  int64_t token_multiple() const override { return kTokenMultiple; }
  std::unique_ptr<ops::OpSizing> op_sizing(bool deterministic) const override;
  const comm::CommSizing& comm_sizing() const override { return comm_sizing_; }
  /// ConfigError when the GPU is older than compute capability 8.0.
  std::unique_ptr<device::Backend> open(const device::RankSite& site) override;

 private:
  device::ModuleLibraries libraries_;
  CommSizing comm_sizing_;
  int num_devices_ = 0;
};

}  // namespace trireme::cuda
