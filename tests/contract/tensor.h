// Matrices of doubles: what the reference computes with, and what a backend's results become.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/dtype.h"

namespace trireme::contract {

struct Tensor {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> values;

  Tensor() = default;
  Tensor(int64_t num_rows, int64_t num_cols, double value = 0.0)
      : rows(num_rows), cols(num_cols), values(static_cast<size_t>(num_rows * num_cols), value) {}

  double& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  double at(int64_t row, int64_t col) const {
    return values[static_cast<size_t>(row * cols + col)];
  }
  double& at(int64_t i) { return values[static_cast<size_t>(i)]; }
  double at(int64_t i) const { return values[static_cast<size_t>(i)]; }
  int64_t size() const { return rows * cols; }
};

/// Normal values, times `scale`.
Tensor random_tensor(std::mt19937& generator, int64_t rows, int64_t cols, double scale = 1.0);

/// Each value as `dtype` holds it.
Tensor rounded(Tensor tensor, DType dtype);

/// a + b, elementwise.
Tensor plus(const Tensor& a, const Tensor& b);

}  // namespace trireme::contract
