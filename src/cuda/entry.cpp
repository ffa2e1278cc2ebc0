// The one symbol that leaves the module.
#include "cuda/module.h"

namespace {

trireme::device::BackendMaker* make(const trireme::device::ModuleLibraries& libraries) {
  return new trireme::cuda::BackendMaker(libraries);
}

constexpr trireme::device::BackendModule kModule{trireme::device::kBackendAbi, TRIREME_VERSION,
                                                 &make};

}  // namespace

extern "C" __attribute__((visibility("default"))) const trireme::device::BackendModule*
trireme_backend_module() {
  return &kModule;
}
