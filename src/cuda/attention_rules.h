// How a call of attention is cut into calls of cuDNN, and what memory they take: pure rules.
//
// cuDNN's plans are made for (sequences, longest) and pay for those bounds. Batches of sequences of
// one length are dense; others are ragged: lengths and offsets are data, `longest` is rounded up to
// a class, and sequences without tokens fill the last call. The gradient's workspace grows with
// sequences * longest, or with the square of `longest` where it must repeat bit for bit, so a
// gradient takes as many calls as keep it within kBudget, and at least one sequence a call. Short
// sequences of a ragged batch have calls of their own where that saves more than calls cost.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/op.h"

namespace trireme::cuda {

/// What the rules read of a call.
struct AttentionCase {
  bool backward = false;
  bool gpu_matrix_units = false;  // bf16 heads of a size that cuDNN's kernels are made for
  bool even = false;              // every sequence has exactly `longest` tokens
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: all keys
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t longest = 0;
  ops::LengthCounts lengths;

  explicit AttentionCase(const ops::OpCall& call);
  /// Nothing to compute.
  bool empty() const { return tokens == 0 || sequences == 0 || longest == 0; }
};

/// Of one launch: the last dimension of a grid is at most 65535.
inline constexpr int64_t kMostSequences = 32768;

/// Which GPU, and whether gradients must repeat bit for bit.
struct AttentionPolicy {
  int compute_capability = 90;
  bool deterministic = false;
};

/// Whether cuDNN computes the case; else our own kernels do.
bool cudnn_computes(const AttentionCase& c, const AttentionPolicy& policy);

/// Lengths of ragged batches are planned as 128 * 2^i or 192 * 2^i.
int64_t length_class(int64_t longest);

/// Calls of cuDNN that share one plan.
struct AttentionGroup {
  int64_t above = 0;      // it has the sequences of more tokens than this ...
  int64_t length = 0;     // ... and at most so many, which are planned
  int64_t sequences = 0;  // of a call; the last one of a dense batch may have fewer
  int64_t count = 0;      // of calls

  /// Of a dense batch of `all` sequences, those of call `i`.
  int64_t sequences_of(int64_t i, int64_t all) const;
};

/// The calls of cuDNN that make up one call of attention: groups by length, the shortest first.
class AttentionCalls {
 public:
  AttentionCalls(const AttentionCase& c, const AttentionPolicy& policy);
  bool ragged() const { return ragged_; }
  std::span<const AttentionGroup> groups() const {
    return std::span(groups_).first(static_cast<size_t>(num_groups_));
  }

 private:
  void add_dense(const AttentionCase& c, const AttentionPolicy& policy);
  void add_ragged(const AttentionCase& c, const AttentionPolicy& policy, int64_t length,
                  int64_t sequences);
  void add_by_length(const AttentionCase& c, const AttentionPolicy& policy);

  bool ragged_;
  int num_groups_ = 0;
  std::array<AttentionGroup, ops::LengthCounts::kClasses> groups_;
};

/// Upper bound of cuDNN's own workspace of one call: read off cuDNN 9.19's plans for compute
/// capabilities 8.0, 9.0 and 10.0, where it is exact to a few KiB.
int64_t cudnn_bytes(const AttentionCase& c, const AttentionPolicy& policy, int64_t sequences,
                    int64_t length, bool ragged);

/// Lengths and offsets of the sequences of one call of a ragged batch, filled on the GPU. Offsets
/// are i64, in elements; each array begins at a multiple of 16 bytes.
struct RaggedArrays {
  int64_t sequences;  // of the call
  int num_offsets;    // arrays of offsets: one for each different stride

  int64_t lengths_bytes() const;
  int64_t offsets_bytes() const;  // of one array
  int64_t call_bytes() const { return lengths_bytes() + num_offsets * offsets_bytes(); }
};
inline constexpr int kForwardOffsets = 3;   // qkv, out, statistics
inline constexpr int kBackwardOffsets = 5;  // and d_qkv, d_out

/// Workspace of a call or of the same call at any smaller extent.
int64_t attention_workspace(const AttentionCase& c, const AttentionPolicy& policy);

}  // namespace trireme::cuda
