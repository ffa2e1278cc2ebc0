#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/backend.h"

namespace trireme::testing {

/// A backend with another device in front.
class WrappedBackend final : public device::Backend {
 public:
  WrappedBackend(device::Backend& backend, std::unique_ptr<device::Device> front)
      : backend_(backend), front_(std::move(front)) {}
  device::Device& device() override { return *front_; }
  comm::Communicator& communicator() override { return backend_.communicator(); }
  const ops::OpSizing& op_sizing() const override { return backend_.op_sizing(); }
  const comm::CommSizing& comm_sizing() const override { return backend_.comm_sizing(); }
  int64_t token_multiple() const override { return backend_.token_multiple(); }
  int64_t loss_chunk_bytes() const override { return backend_.loss_chunk_bytes(); }
  std::vector<std::pair<std::string, std::string>> facts() const override {
    return backend_.facts();
  }
  device::MemoryUse memory() const override { return backend_.memory(); }
  void prepare(const ops::OpCall& call) override { backend_.prepare(call); }
  void tune(const ops::OpCall& call) override { backend_.tune(call); }
  std::string algorithms() const override { return backend_.algorithms(); }
  void use_algorithms(std::string_view text) override { backend_.use_algorithms(text); }
  std::vector<std::string> take_notices() override { return backend_.take_notices(); }

 private:
  device::Backend& backend_;
  std::unique_ptr<device::Device> front_;
};

}  // namespace trireme::testing
