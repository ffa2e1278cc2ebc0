// NCCL's functions, from the library that the loader found: a world of one rank needs none, so the
// module is not linked to it.
#pragma once

#include <nccl.h>

#include <string>

namespace trireme::cuda {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommRevoke) revoke = nullptr;  // null before NCCL 2.28.9
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclCommRegister) register_buffer = nullptr;
  decltype(&ncclCommDeregister) deregister_buffer = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

/// Loads the library, which stays loaded. ConfigError, one sentence, when it is absent, incomplete
/// or older than 2.28.
NcclApi load_nccl(const std::string& library);

/// "2.28.9".
std::string nccl_version(const NcclApi& api);

}  // namespace trireme::cuda
