// The command line of `trireme launch`: torchrun's and deepspeed's flags, for one node.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "launch/agent.h"

namespace trireme::launch {

/// What a number of processes may follow from.
struct LocalMachine {
  std::function<int()> num_gpus;
  std::function<int()> num_cores;
};

struct LaunchRequest {
  LaunchOptions options;
  std::vector<std::string> command;  // of each rank
  /// What CUDA_VISIBLE_DEVICES shall be (--include, --exclude); empty: as it is.
  std::string visible_devices;
  /// Sentences: what was given and has no effect.
  std::vector<std::string> notices;
  bool help = false;
};

/// `args` without program and verb: flags, with '-' or '_', up to the first word that is none, or
/// "--"; the rest is the ranks' command. Every flag of torchrun and deepspeed is honoured, accepted
/// with a notice that says why it has no effect, or refused by name. Throws ConfigError, DataError
/// for a host file.
LaunchRequest parse_launch(std::span<const std::string> args, const LocalMachine& machine);

/// `trireme launch --help`.
std::string launch_help();

}  // namespace trireme::launch
