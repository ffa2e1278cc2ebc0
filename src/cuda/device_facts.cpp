#include "cuda/device_facts.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <array>

#include "base/error.h"
#include "base/text.h"
#include "cuda/handle.h"

namespace trireme::cuda {

namespace {

std::string cuda_version(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

std::string pci_bus_id(int device) {
  std::array<char, 32> text{};
  TRIREME_CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

/// The few functions of NVIDIA's management library that are used here.
struct Nvml {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);

  template <typename Function>
  Function find(const char* name) const {
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  }
};

std::string text_of_driver(const Nvml& nvml) {
  const auto version = nvml.find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  if (version == nullptr || version(text.data(), static_cast<unsigned>(text.size())) != 0)
    return {};
  return text.data();
}

}  // namespace

std::string link_kind(const std::string& pci_bus_id) {
  using Device = void*;
  const Nvml nvml;
  const auto init = nvml.find<int (*)()>("nvmlInit_v2");
  const auto by_id = nvml.find<int (*)(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
  const auto link_state =
      nvml.find<int (*)(Device, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState");
  const auto generation =
      nvml.find<int (*)(Device, unsigned*)>("nvmlDeviceGetMaxPcieLinkGeneration");
  const auto width = nvml.find<int (*)(Device, unsigned*)>("nvmlDeviceGetMaxPcieLinkWidth");
  Device device = nullptr;
  if (init == nullptr || by_id == nullptr || init() != 0 ||
      by_id(pci_bus_id.c_str(), &device) != 0) {
    return "unknown";
  }
  constexpr unsigned kMaxLinks = 18;
  int links = 0;
  for (unsigned link = 0; link_state != nullptr && link < kMaxLinks; ++link) {
    unsigned active = 0;
    if (link_state(device, link, &active) == 0 && active != 0) ++links;
  }
  if (links > 0) return fmt::format("NVLink, {} links", links);
  unsigned gen = 0;
  unsigned lanes = 0;
  if (generation == nullptr || width == nullptr || generation(device, &gen) != 0 ||
      width(device, &lanes) != 0) {
    return "unknown";
  }
  return fmt::format("PCIe generation {}, {} lanes", gen, lanes);
}

std::vector<std::pair<std::string, std::string>> device_facts(int device, const NcclApi* nccl) {
  cudaDeviceProp properties{};
  TRIREME_CUDA(cudaGetDeviceProperties(&properties, device));
  int driver = 0;
  int runtime = 0;
  TRIREME_CUDA(cudaDriverGetVersion(&driver));
  TRIREME_CUDA(cudaRuntimeGetVersion(&runtime));
  const std::string bus = pci_bus_id(device);
  const std::string link = link_kind(bus);  // starts the management library
  const std::string driver_text = text_of_driver(Nvml());
  const size_t blas = cublasLtGetVersion();
  const size_t dnn = cudnnGetVersion();
  std::string libraries =
      fmt::format("CUDA {}, cuBLASLt {}.{}.{}, cuDNN {}.{}.{}", cuda_version(runtime), blas / 10000,
                  blas / 100 % 100, blas % 100, dnn / 10000, dnn / 100 % 100, dnn % 100);
  if (nccl != nullptr) libraries += fmt::format(", NCCL {}", nccl_version(*nccl));
  return {{"GPU", fmt::format("{} ({}, compute capability {}.{}), {}", properties.name, bus,
                              properties.major, properties.minor,
                              human_bytes(static_cast<int64_t>(properties.totalGlobalMem)))},
          {"Driver", fmt::format("{}{}for CUDA {}", driver_text, driver_text.empty() ? "" : ", ",
                                 cuda_version(driver))},
          {"GPU libraries", libraries},
          {"Link", link}};
}

}  // namespace trireme::cuda
