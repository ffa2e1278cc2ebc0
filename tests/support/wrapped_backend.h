#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"

namespace trireme::testing {

/// A backend with another device in front (null: its own), and more to say.
class WrappedBackend final : public device::Backend {
 public:
  WrappedBackend(device::Backend& backend, std::unique_ptr<device::Device> front,
                 std::vector<std::string> notices = {})
      : backend_(backend), front_(std::move(front)), notices_(std::move(notices)) {}
  device::Device& device() override { return front_ ? *front_ : backend_.device(); }
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
  int64_t sizes_to_prepare() const override { return backend_.sizes_to_prepare(); }
  void tune(const ops::OpCall& call) override { backend_.tune(call); }
  void keep_algorithms() override { backend_.keep_algorithms(); }
  std::string algorithms() const override { return backend_.algorithms(); }
  std::string use_algorithms(std::span<const std::string> texts) override {
    return backend_.use_algorithms(texts);
  }
  std::vector<std::string> take_notices() override {
    std::vector<std::string> all = backend_.take_notices();
    all.insert(all.end(), notices_.begin(), notices_.end());
    notices_.clear();
    return all;
  }

 private:
  device::Backend& backend_;
  std::unique_ptr<device::Device> front_;
  std::vector<std::string> notices_;
};

}  // namespace trireme::testing
