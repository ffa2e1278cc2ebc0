#include "cpu/backend.h"

namespace trireme::cpu {

Backend::Backend(std::unique_ptr<comm::Communicator> communicator, int num_threads,
                 const DeviceOptions& options)
    : ops_(num_threads),
      op_sizing_(num_threads),
      communicator_(std::move(communicator)),
      device_([this](device::StreamKind, const ops::OpCall& call) { cpu::run(call, ops_); },
              *communicator_, options) {}

std::vector<std::pair<std::string, std::string>> Backend::facts() const {
  return {{"Device", "CPU"}, {"Threads per rank", std::to_string(ops_.num_threads())}};
}

}  // namespace trireme::cpu
