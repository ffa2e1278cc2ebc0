// The reason of a failure, where torchrun's agent looks for it.
#pragma once

#include <string_view>

#include "launch/ranks.h"

namespace trireme::launch {

/// Writes `text` to TORCHELASTIC_ERROR_FILE, whose earliest one torchrun shows as the root cause;
/// nothing without that variable. A file that cannot be written is left out: the text was also
/// said.
void write_error_file(const Environment& environment, std::string_view text);

}  // namespace trireme::launch
