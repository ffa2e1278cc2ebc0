// Whole training runs on ranks that are threads: what `trireme train` does, without processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace trireme::testing {

/// What the run of a rank sees of its device.
using WrapDevice = std::function<std::unique_ptr<device::Device>(int rank, device::Device& device)>;

/// Runs `trireme train ARGS`. What each rank threw, "" where it ended well. `notices`: what the
/// backends have to say.
std::vector<std::string> run_in_process(const std::vector<std::string>& args, int ranks,
                                        const WrapDevice& wrap = {},
                                        const std::vector<std::string>& notices = {});

}  // namespace trireme::testing
