// What there is to say of a GPU and the libraries that drive it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuda/nccl_api.h"

namespace trireme::cuda {

/// Lines for the banner, of the current device: name and memory, driver, runtime and library
/// versions, link to the other GPUs. `nccl` may be null.
std::vector<std::pair<std::string, std::string>> device_facts(int device, const NcclApi* nccl);

/// "NVLink, 18 links", "PCIe generation 5, 16 lanes" or "unknown", as NVIDIA's management library
/// says.
std::string link_kind(const std::string& pci_bus_id);

}  // namespace trireme::cuda
