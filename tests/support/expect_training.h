// What every layout has in common with the single process.
#pragma once

#include <gtest/gtest.h>

#include "support/rig.h"

namespace trireme::testing {

/// Gradients of the first step to 1e-5, its loss and norm to 1e-6, all others and the weights to
/// 1e-5; and the run took the memory that was planned.
inline void expect_same_training(const RigResult& result, const RigResult& expected) {
  EXPECT_LT(relative_difference(result.gradients, expected.gradients), 1e-5);
  ASSERT_EQ(result.steps.size(), expected.steps.size());
  for (size_t s = 0; s < result.steps.size(); ++s) {
    for (ops::Control field : {ops::Control::loss, ops::Control::grad_norm}) {
      const double reference = train::value(expected.steps[s], field);
      const double tolerance = s == 0 ? 1e-6 : 1e-5;
      EXPECT_NEAR(train::value(result.steps[s], field), reference, tolerance * reference)
          << "step " << s << " field " << ops::index(field);
    }
    EXPECT_EQ(train::value(result.steps[s], ops::Control::trained_tokens),
              train::value(expected.steps[s], ops::Control::trained_tokens));
  }
  EXPECT_LT(relative_difference(result.masters, expected.masters), 1e-5);
  EXPECT_EQ(result.exported, result.masters);
  EXPECT_EQ(result.planned, result.allocated);
}

}  // namespace trireme::testing
