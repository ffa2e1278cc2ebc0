// How much workspace the CUDA bodies need: pure rules, that know of no library and need no GPU, so
// that a plan for GPUs can be made anywhere.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "ops/op.h"

namespace trireme::cuda {

/// Every matrix product may use so much (and a little to align it). Algorithms that want more are
/// not taken, so that the choice of an algorithm never moves memory.
inline constexpr int64_t kMatmulWorkspace = int64_t{32} << 20;
inline constexpr int64_t kWorkspaceAlignment = 256;

/// Column sums: the rows are cut into slices, whose sums (slices, cols):f32 are then added in
/// order.
struct ColumnSlices {
  static constexpr int64_t kMost = 128;
  static constexpr int64_t kLeastRows = 64;
  int64_t rows = 0;  // of a slice
  int64_t count = 0;

  explicit ColumnSlices(int64_t num_rows)
      : rows(std::max(kLeastRows, ceil_div(num_rows, kMost))), count(ceil_div(num_rows, rows)) {}
  static int64_t bytes(int64_t num_rows, int64_t cols) {
    // Fewer rows may be cut into more slices.
    const int64_t most = std::min(kMost, ceil_div(num_rows, kLeastRows));
    return most * cols * static_cast<int64_t>(sizeof(float));
  }
};

/// Gradients of norms: blocks sum the rows they pass over, a row of sums (cols):f32 each, which are
/// then added in order. Two blocks on each multiprocessor of an H200; longer rows are cut as
/// ColumnSlices, which are no more.
struct NormSlices {
  static constexpr int64_t kMost = 264;
  static int64_t bytes(int64_t num_rows, int64_t cols) {
    return std::min(kMost, num_rows) * cols * static_cast<int64_t>(sizeof(float));
  }
};

/// sum_squares: pieces of the vector are summed apart, one f64 each.
struct SquarePieces {
  static constexpr int64_t kMost = 1056;
  static constexpr int64_t kLeastElements = 4096;
  static int64_t count(int64_t elements) {
    return std::clamp<int64_t>(ceil_div(elements, kLeastElements), 1, kMost);
  }
  static int64_t bytes(int64_t elements) {
    return count(elements) * static_cast<int64_t>(sizeof(double));
  }
};

/// embedding_weight_grad: sorted tokens are summed in chunks; a chunk that begins inside a run of
/// one id keeps that part of the sum, a row of f32.
struct EmbeddingChunks {
  static constexpr int64_t kTokens = 32;
  static int64_t count(int64_t tokens) { return ceil_div(tokens, kTokens); }
  static int64_t bytes(int64_t tokens, int64_t cols) {
    return count(tokens) * cols * static_cast<int64_t>(sizeof(float));
  }
};

/// Workspace of the bodies. Thread-safe.
class OpSizing final : public ops::OpSizing {
 public:
  /// Compute capability (90 for H100 and H200) decides which attention runs; `deterministic`, which
  /// gradient of it.
  explicit OpSizing(int compute_capability = 90, bool deterministic = false)
      : compute_capability_(compute_capability), deterministic_(deterministic) {}

  int64_t workspace_bytes(const ops::OpCall& call) const override;
  bool supports(ops::OpKind kind, DType dtype) const override;

 private:
  int compute_capability_;
  bool deterministic_;
};

}  // namespace trireme::cuda
