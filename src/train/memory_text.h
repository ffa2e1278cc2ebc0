// The table of planned memory, as people see it.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace trireme::train {

/// Rows of plan::memory_table under `title`; `besides`: bytes of context and libraries on a device, 0
/// where there are none.
std::string memory_text(const std::string& title, const plan::Plan& plan, int64_t besides);

}  // namespace trireme::train
