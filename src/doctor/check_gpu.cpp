#include <fmt/format.h>

#include <fstream>

#include "doctor/checks.h"

namespace trireme::doctor {
namespace {

/// "580.95.05" of the kernel's part of the driver; empty when it is not loaded.
std::string kernel_driver(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return "";
}

}  // namespace

Findings check_gpu(const std::filesystem::path& root, const accel::CudaSight& sight, bool wanted) {
  const std::string kernel = kernel_driver(root);
  const std::string driver =
      kernel.empty() ? "" : fmt::format("NVIDIA driver {} is loaded; ", kernel);
  if (sight.num_devices == 0) {
    return {{wanted ? Verdict::bad : Verdict::note, "GPU", driver + sight.why_not,
             wanted ? "install a driver for CUDA 13 (580 or newer), or train with --device cpu"
                    : "training takes the CPU"}};
  }
  return {{Verdict::good, "GPU",
           fmt::format("{}{} devices, CUDA {}.{}", driver, sight.num_devices,
                       sight.driver_version / 1000, sight.driver_version % 1000 / 10),
           ""}};
}

}  // namespace trireme::doctor
