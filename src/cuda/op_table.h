// The GPU's bodies of the operations: launch one call on a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/op_sizing.h"
#include "ops/op.h"

struct CUstream_st;

namespace trireme::cuda {

class MatmulLibrary;
class AttentionLibrary;

/// What the bodies of one rank keep between calls: handles of the libraries, plans and algorithms.
/// Used by one host thread at a time, with its GPU current.
class OpContext {
 public:
  /// `deterministic` takes gradients of attention that repeat bit for bit; the plan's OpSizing
  /// must have been made with the same value.
  /// `algorithm_cache`: as device::RankSite's.
  explicit OpContext(int device, bool deterministic = false,
                     const std::string& algorithm_cache = {});
  ~OpContext();
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;

  int device() const { return device_; }
  /// 90 for 9.0.
  int compute_capability() const { return compute_capability_; }
  bool deterministic() const { return deterministic_; }
  /// The rules that this context's bodies follow.
  OpSizing sizing() const { return OpSizing(compute_capability_, deterministic_); }

  MatmulLibrary& matmuls() { return *matmuls_; }
  AttentionLibrary& attentions() { return *attentions_; }

  /// As those of device::Backend. Texts of another library version or GPU are dropped, and so are
  /// entries that turn out to be invalid: tune() measures them again.
  std::string algorithms() const;
  std::string use_algorithms(std::span<const std::string> texts);
  /// Sentences about such entries since the last call of this.
  std::vector<std::string> take_notices();

 private:
  int device_;
  int compute_capability_;
  bool deterministic_;
  std::unique_ptr<MatmulLibrary> matmuls_;
  std::unique_ptr<AttentionLibrary> attentions_;
};

/// Launches the call on `stream` and returns; never waits for the GPU. Throws BugError for a call
/// that breaks the contract and DeviceError for a library's refusal, before anything is launched.
///
/// Memory: only call.workspace, at least OpSizing::workspace_bytes of that call or of the same call
/// at a larger extent. What prepare() would make is made at its first use (host memory only).
void run(const ops::OpCall& call, OpContext& context, CUstream_st* stream);

/// Readies what run(call) would make at its first use: a plan of attention (about half a second for
/// each length class), the description of a product. Data pointers are compared, never read.
void prepare(const ops::OpCall& call, OpContext& context);

/// Measures the candidates of a matrix product on the call's own operands, which are filled with
/// random values, and keeps the fastest for its size class; does nothing for other operations, or
/// where the class has a valid choice already. Blocks.
void tune(const ops::OpCall& call, OpContext& context);

}  // namespace trireme::cuda
