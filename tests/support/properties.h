// RapidCheck with a fixed seed, so that a run can be repeated; RC_PARAMS overrides it.
#pragma once

#include <rapidcheck/gtest.h>

#include <cstdlib>

namespace trireme::test {

inline const int kSeeded = ::setenv("RC_PARAMS", "seed=2026 max_success=1000", 0);

}  // namespace trireme::test
