#include "cuda/module.h"

#include "base/error.h"
#include "cuda/device_facts.h"

namespace trireme::cuda {

namespace {

NcclWorld world_of(int device, const device::RankSite& site, const std::string& prefix,
                   const std::string& library) {
  NcclWorld world;
  world.rank = site.rank;
  world.world_size = site.world_size;
  world.device = device;
  world.store = site.world_size > 1 ? site.store : nullptr;
  world.prefix = prefix;
  world.library = library;
  world.timeout = site.timeout;
  world.connect_timeout = site.connect_timeout;
  world.wire_sums = site.wire_sums;
  return world;
}

DeviceOptions options_of(int device, const device::RankSite& site) {
  DeviceOptions options;
  options.rank = site.rank;
  options.device = device;
  options.timeout = site.timeout;
  options.delay_collectives = site.delay_collectives;
  return options;
}

/// 90 for 9.0.
int compute_capability(int device) {
  int major = 0;
  int minor = 0;
  TRIREME_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TRIREME_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

/// Makes the GPU current and starts its context.
int start(int device) {
  TRIREME_CUDA(cudaSetDevice(device));
  TRIREME_CUDA(cudaFree(nullptr));
  return device;
}

}  // namespace

Backend::Backend(int device, const device::RankSite& site, const std::string& prefix,
                 const std::string& nccl_library)
    : device_id_(start(device)),
      ops_(device, site.deterministic, site.algorithm_cache),
      op_sizing_(ops_.sizing()),
      communicator_(world_of(device, site, prefix, nccl_library)),
      device_([this](const ops::OpCall& call, cudaStream_t stream) { run(call, ops_, stream); },
              communicator_, options_of(device, site)) {}

std::vector<std::pair<std::string, std::string>> Backend::facts() const {
  auto facts = device_facts(device_id_, communicator_.api());
  facts.emplace_back("Gradient of attention",
                     ops_.deterministic()
                         ? "repeats bit for bit"
                         : "the fastest, last bits may differ between runs (--deterministic true "
                           "insists)");
  return facts;
}

device::MemoryUse Backend::memory() const {
  const DeviceMemory memory = device_memory();
  return {memory.total, memory.free, device_.allocated(device::Space::device),
          memory_besides(communicator_.world_size())};
}

BackendMaker::BackendMaker(const device::ModuleLibraries& libraries) : libraries_(libraries) {
  TRIREME_CUDA(cudaGetDeviceCount(&num_devices_));
}

std::unique_ptr<ops::OpSizing> BackendMaker::op_sizing(bool deterministic) const {
  return std::make_unique<OpSizing>(compute_capability(0), deterministic);
}

std::unique_ptr<device::Backend> BackendMaker::open(const device::RankSite& site) {
  const int device = site.local_rank % num_devices_;
  const int capability = compute_capability(device);
  if (capability < 80) {
    throw ConfigError(
        fmt::format("device cuda: GPU {} has compute capability {}.{}, 8.0 (A100) or "
                    "newer is needed; pass --device cpu",
                    device, capability / 10, capability % 10));
  }
  // Ranks open their backends in the same order, so equal counts name one world.
  std::string prefix = "cuda";
  if (site.world_size > 1) {
    prefix += fmt::format("/{}", site.store->add(fmt::format("cuda/opened/{}", site.rank), 1));
  }
  return std::make_unique<Backend>(device, site, prefix, libraries_.collectives);
}

}  // namespace trireme::cuda
