// The learning rate of every update, by the formulas of Hugging Face and DeepSpeed.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"

namespace trireme::config {

/// `lr_end` of polynomial when it is not given.
inline constexpr double kDefaultPolynomialEnd = 1e-7;

/// A whole number of steps as it is; a share of `total_steps` below 1 rounded up.
int64_t count_steps(double steps_or_share, int64_t total_steps);

/// `total_steps` + 1 rates; index s = updates already made, so the first update uses entry 0 (which
/// is 0 where there is a warm-up). The configuration passed validate().
std::vector<double> schedule_table(const RunConfig& config, int64_t total_steps);

}  // namespace trireme::config
