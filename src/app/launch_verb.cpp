#include <cstdio>
#include <cstdlib>

#include "accel/cuda_loader.h"
#include "app/verbs.h"
#include "base/error.h"
#include "host/cpu_topology.h"
#include "launch/launch_flags.h"

namespace trireme::app {

int launch_verb(Arguments args) {
  launch::LocalMachine machine;
  machine.num_gpus = [] { return accel::look_for_cuda().num_devices; };
  machine.num_cores = [] { return host::read_cpu_topology().usable_cores(); };
  const launch::LaunchRequest request = launch::parse_launch(args, machine);
  if (request.help) {
    std::fputs(launch::launch_help().c_str(), stdout);
    return 0;
  }
  for (const std::string& notice : request.notices) {
    std::fputs(fmt::format("trireme launch: {}\n", notice).c_str(), stderr);
  }
  const std::string& devices = request.visible_devices;
  if (!devices.empty() && setenv("CUDA_VISIBLE_DEVICES", devices.c_str(), 1) != 0) {
    throw_errno("setenv", "CUDA_VISIBLE_DEVICES");
  }
  return launch::launch(request.options, request.command);
}

}  // namespace trireme::app
