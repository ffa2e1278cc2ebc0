// A call of a library that may never return.
#pragma once

#include <chrono>
#include <functional>

namespace trireme::cuda {

/// Runs `work`, which must not throw and must own what it uses, on a thread of its own; true when
/// it ended within `limit`. Otherwise it goes on alone.
bool run_bounded(std::function<void()> work, std::chrono::milliseconds limit);

}  // namespace trireme::cuda
