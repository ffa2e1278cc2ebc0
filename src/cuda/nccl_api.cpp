#include "cuda/nccl_api.h"

#include <dlfcn.h>

#include "base/error.h"

namespace trireme::cuda {

namespace {

constexpr int kOldest = NCCL_VERSION(2, 28, 0);

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError(
      fmt::format("device cuda with several ranks: {}; install NCCL 2.28 or newer (pip install "
                  "nvidia-nccl-cu13), or run one rank",
                  what));
}

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

int version_of(const NcclApi& api) {
  int version = 0;
  return api.get_version(&version) == ncclSuccess ? version : 0;
}

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) refuse(fmt::format("the NCCL library has no {}", name));
}

}  // namespace

NcclApi load_nccl(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    refuse(fmt::format("NCCL cannot be loaded: {}", reason == nullptr ? library : reason));
  }
  NcclApi api;
  find(handle, "ncclGetVersion", &api.get_version);
  if (version_of(api) < kOldest) {
    refuse(fmt::format("{} is NCCL {}, too old", library, version_text(version_of(api))));
  }
  find(handle, "ncclGetUniqueId", &api.get_unique_id);
  find(handle, "ncclCommInitRankConfig", &api.init_rank);
  find(handle, "ncclCommDestroy", &api.destroy);
  find(handle, "ncclCommAbort", &api.abort);
  find(handle, "ncclCommGetAsyncError", &api.get_async_error);
  find(handle, "ncclGetErrorString", &api.error_string);
  find(handle, "ncclGetLastError", &api.last_error);
  find(handle, "ncclCommRegister", &api.register_buffer);
  find(handle, "ncclCommDeregister", &api.deregister_buffer);
  find(handle, "ncclGroupStart", &api.group_start);
  find(handle, "ncclGroupEnd", &api.group_end);
  find(handle, "ncclAllGather", &api.all_gather);
  find(handle, "ncclReduceScatter", &api.reduce_scatter);
  find(handle, "ncclReduce", &api.reduce);
  find(handle, "ncclAllReduce", &api.all_reduce);
  find(handle, "ncclBroadcast", &api.broadcast);
  find(handle, "ncclSend", &api.send);
  find(handle, "ncclRecv", &api.recv);
  api.revoke = reinterpret_cast<decltype(api.revoke)>(dlsym(handle, "ncclCommRevoke"));
  return api;
}

std::string nccl_version(const NcclApi& api) { return version_text(version_of(api)); }

}  // namespace trireme::cuda
