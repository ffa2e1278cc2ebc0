// Opens the CUDA backend, where this machine has what it needs.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "accel/library_search.h"
#include "device/backend_module.h"

namespace trireme::accel {

/// What the driver says; no context is made.
struct CudaSight {
  int num_devices = 0;
  int driver_version = 0;  // of CUDA: 13000 is 13.0
  std::string
      why_not;  // no device: a clause such as "no NVIDIA driver (libcuda.so.1) is installed"
};
/// Starts the driver in this process: not before a fork without exec.
CudaSight look_for_cuda();

/// A library that the module is linked to, or (NCCL) opens.
struct NeededLibrary {
  LibraryName name;
  std::string product;
  std::string package;  // of pip
};
/// NVRTC, cuBLASLt, cuDNN and NCCL, in the order of loading.
std::vector<NeededLibrary> needed_libraries();

struct CudaStart {
  /// Else a machine without a driver or without a GPU gives null.
  bool required = true;
  /// Whose GPU (this number modulo their count) gets its context, which stays: the first backend
  /// opened on it finds it there. -1: none.
  int local_rank = -1;
};

/// Starts the driver and, beside it, finds the CUDA libraries, loads them by their paths, then the
/// module `libtrireme_cuda.so` beside the running program, in ../lib, or in a folder above it. Call
/// it before any other use of CUDA in the process: it sets what the driver reads at its start.
/// Loaded libraries stay. Returns at once; the work is done on threads of its own, and the
/// future's end waits for them.
///
/// The future throws ConfigError, one sentence: what is missing or too old (driver, GPU, library,
/// module), and how to get it.
std::future<std::unique_ptr<device::BackendMaker>> start_cuda(const CudaStart& start);
/// The same, waited for.
std::unique_ptr<device::BackendMaker> load_cuda();

}  // namespace trireme::accel
