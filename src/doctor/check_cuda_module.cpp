#include "base/error.h"
#include "doctor/checks.h"

namespace trireme::doctor {

Findings check_cuda_module() {
  try {
    accel::load_cuda();
  } catch (const ConfigError& error) {
    return {{Verdict::bad, "CUDA module", error.what(), ""}};
  }
  return {{Verdict::good, "CUDA module", "loads with its libraries", ""}};
}

}  // namespace trireme::doctor
