// The checks of `trireme doctor`, one a file. None changes anything that lasts; each takes at most
// a few seconds. `root` is put before the paths of the system, for tests.
#pragma once

#include <filesystem>
#include <string>

#include "accel/cuda_loader.h"
#include "doctor/finding.h"
#include "store/socket.h"

namespace trireme::doctor {

/// Model, cores, quota, and the instructions that matrix products use.
Findings check_cpu(const std::filesystem::path& root);
/// What may be taken: of the machine, cut to the control group's limit.
Findings check_memory(const std::filesystem::path& root);
/// Open files that a process may have: a rank has one connection to each other rank and group.
Findings check_limits();
/// The NVIDIA driver and its devices. Without one: a note, or bad when `wanted` (--device cuda).
Findings check_gpu(const std::filesystem::path& root, const accel::CudaSight& sight, bool wanted);
/// The CUDA libraries that a run with GPUs loads; without one of them bad where GPUs are `wanted`.
Findings check_cuda_libraries(const std::vector<std::filesystem::path>& folders, bool wanted);
/// Whether the CUDA module with all that it needs can be loaded into this process.
Findings check_cuda_module();
/// That files can be written, made durable and renamed in `folder`, or where it would be made.
Findings check_folder(const std::filesystem::path& folder);
/// Loopback, the name of this host, and the ranks' port (0: any).
Findings check_network(const store::Endpoint& master);

}  // namespace trireme::doctor
