// The device that tests of whole steps run on: the CPU, or the GPUs of this machine when
// TRIREME_TEST_DEVICE=cuda. Ranks are threads either way.
#pragma once

#include <memory>

#include "cpu/device.h"
#include "device/backend_module.h"

namespace trireme::testing {

bool on_cuda();
/// Ranks that a test may have: any number on the CPU, one a GPU on CUDA.
int max_ranks();
/// Loaded once; CUDA only.
device::BackendMaker& cuda_maker();

/// The world of one test.
class TestWorld {
 public:
  explicit TestWorld(int ranks);
  ~TestWorld();
  /// Collective, on the rank's thread. Of `options` CUDA knows delay_collectives.
  std::unique_ptr<device::Backend> open(int rank, int num_threads = 1,
                                        const cpu::DeviceOptions& options = {});

 private:
  struct Parts;
  int ranks_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace trireme::testing
