// The CPU's bodies of the operations: run one call on this thread and its OpenMP team.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/op.h"

namespace trireme::cpu {

class MatmulCache;

/// Whether this processor multiplies bf16 pairs itself (AVX-512 BF16 here and in oneDNN).
/// Where it does not, bf16 products are made of f32 copies in the workspace.
bool has_bf16_products();

/// What the bodies of one rank keep between calls: its thread count and the matrix products
/// prepared so far. Ranks that are threads of one process have one each. Matrix products belong to
/// one thread, always the same; other operations may run on several at once (each thread that runs
/// operations has an OpenMP team of its own).
class OpContext {
 public:
  explicit OpContext(int num_threads, bool bf16_products = has_bf16_products());
  ~OpContext();
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;

  int num_threads() const { return num_threads_; }
  bool bf16_products() const { return bf16_products_; }
  MatmulCache& matmuls() { return *matmuls_; }

 private:
  int num_threads_;
  bool bf16_products_;
  std::unique_ptr<MatmulCache> matmuls_;
};

/// Runs the call to its end on the calling thread and num_threads - 1 others. Results do not depend
/// on the number of threads. Throws BugError for a call that breaks the contract, before anything
/// is written.
///
/// Memory: only call.workspace, which must hold at least OpSizing::workspace_bytes of that call or
/// of the same call with more rows. The first matrix product of a new shape prepares a primitive
/// (about 0.2 ms and 80 KiB, kept; the 1024 latest are kept).
void run(const ops::OpCall& call, OpContext& context);

/// Prepares what run(call) would prepare on first use; data pointers are not read. So that steps
/// allocate nothing, call it once for every shape beforehand.
void prepare(const ops::OpCall& call, OpContext& context);

/// Workspace of these bodies for a thread count. Thread-safe.
class OpSizing : public ops::OpSizing {
 public:
  explicit OpSizing(int num_threads, bool bf16_products = has_bf16_products());
  int64_t workspace_bytes(const ops::OpCall& call) const override;
  bool supports(ops::OpKind kind, DType dtype) const override;

 private:
  int num_threads_;
  bool bf16_products_;
};

/// (query, key) pairs of one head that `attention` computes for a sequence, those it masks
/// afterwards included. `window` as in Attributes.
int64_t attention_pairs(int64_t length, int64_t window);

}  // namespace trireme::cpu
