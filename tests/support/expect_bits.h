// Runs that must not differ in a single bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "support/rig.h"

namespace trireme::testing {

inline void expect_equal_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const auto& other = b.at(name);
    ASSERT_EQ(tensor.size(), other.size()) << name;
    EXPECT_EQ(std::memcmp(tensor.data(), other.data(), tensor.size() * sizeof(float)), 0) << name;
  }
}

inline void expect_equal_state(const RigResult& a, const RigResult& b) {
  expect_equal_bits(a.masters, b.masters);
  expect_equal_bits(a.exp_avg, b.exp_avg);
  expect_equal_bits(a.exp_avg_sq, b.exp_avg_sq);
}

inline void expect_identical(const RigResult& a, const RigResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t s = 0; s < a.steps.size(); ++s) {
    EXPECT_EQ(std::memcmp(&a.steps[s], &b.steps[s], sizeof(a.steps[s])), 0) << "step " << s;
  }
  expect_equal_state(a, b);
}

}  // namespace trireme::testing
