// One function a verb. `args` come without program and verb; each prints its own output and returns
// the exit code. Errors are thrown; main says them in one line.
#pragma once

#include <span>
#include <string>

namespace trireme::app {

using Arguments = std::span<const std::string>;

int train_verb(Arguments args);
int launch_verb(Arguments args);
int plan_verb(Arguments args);
int tokenize_verb(Arguments args);
int checkpoint_verb(Arguments args);
int selftest_verb(Arguments args);
int doctor_verb(Arguments args);

}  // namespace trireme::app
