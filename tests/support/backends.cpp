#include "support/backends.h"

#include <cstdlib>
#include <limits>
#include <string_view>

#include "accel/cuda_loader.h"
#include "base/error.h"
#include "cpu/backend.h"
#include "cpu/inproc.h"
#include "store/memory_store.h"

namespace trireme::testing {

bool on_cuda() {
  const char* device = std::getenv("TRIREME_TEST_DEVICE");
  const std::string_view name = device == nullptr ? "cpu" : device;
  check(name == "cpu" || name == "cuda", "TRIREME_TEST_DEVICE={}: cpu or cuda", name);
  return name == "cuda";
}

device::BackendMaker& cuda_maker() {
  static const std::unique_ptr<device::BackendMaker> maker = accel::load_cuda();
  return *maker;
}

int max_ranks() { return on_cuda() ? cuda_maker().num_devices() : std::numeric_limits<int>::max(); }

struct TestWorld::Parts {
  explicit Parts(int ranks) : threads(ranks) {}
  cpu::InProcessWorld threads;
  store::MemoryStore store;
};

TestWorld::TestWorld(int ranks) : ranks_(ranks), parts_(std::make_unique<Parts>(ranks)) {}
TestWorld::~TestWorld() = default;

std::unique_ptr<device::Backend> TestWorld::open(int rank, int num_threads,
                                                 const cpu::DeviceOptions& options) {
  if (!on_cuda()) {
    return std::make_unique<cpu::Backend>(parts_->threads.join(rank), num_threads, options);
  }
  device::RankSite site;
  site.rank = rank;
  site.world_size = ranks_;
  site.local_rank = rank;
  site.store = &parts_->store;
  site.timeout = std::chrono::seconds(60);
  site.delay_collectives = options.delay_collectives;
  site.wire_sums = true;
  return cuda_maker().open(site);
}

}  // namespace trireme::testing
