#include <algorithm>
#include <array>

#include "contract/backend.h"
#include "support/backends.h"

namespace trireme::contract {

namespace {

using device::Space;
using device::StreamKind;

class CudaBackend : public Backend {
 public:
  CudaBackend() : backend_(testing::cuda_maker().open({})) {}

  void* allocate(int64_t bytes) override { return device().allocate(Space::device, bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }

  void run(ops::OpCall call) override {
    const int64_t bytes = backend_->op_sizing().workspace_bytes(call);
    if (bytes + kGuard > workspace_bytes_) {
      workspace_bytes_ = bytes + kGuard;
      workspace_ = device().allocate(Space::device, workspace_bytes_);
    }
    call.workspace = workspace_;
    call.workspace_bytes = bytes;
    device().fill(StreamKind::compute, workspace_, 0xff, bytes + kGuard);
    device().launch(StreamKind::compute, call);
    std::array<std::byte, kGuard> guard;
    copy(guard.data(), workspace_ + bytes, kGuard);
    check(std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == std::byte{0xff}; }),
          "{} wrote beyond its workspace", ops::name_of(call.kind));
  }

 private:
  static constexpr int64_t kGuard = 64;

  device::Device& device() { return backend_->device(); }
  void copy(void* to, const void* from, int64_t bytes) {
    device().copy(StreamKind::compute, to, from, bytes);
    device().drain();
  }

  std::unique_ptr<device::Backend> backend_;
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

std::vector<BackendRow> cuda_rows() {
  const auto make = [](int) { return std::make_unique<CudaBackend>(); };
  return {{"cuda_f32", DType::f32, make}, {"cuda_bf16", DType::bf16, make}};
}

}  // namespace trireme::contract
