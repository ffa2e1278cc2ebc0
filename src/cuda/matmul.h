// Matrix products by cuBLASLt: descriptions, algorithms and their choice.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "cuda/algorithm_table.h"

namespace trireme::cuda {

/// A product in cuBLASLt's words, column-major: D(m, n) = op(A)(m, k) op(B)(k, n) (+ C) (+ bias(m),
/// the same for every column). Sums in f32; f32 inputs are multiplied as f32, never as TF32.
struct MatmulProblem {
  DType input = DType::f32;   // of A, B and the bias
  DType output = DType::f32;  // of D
  bool a_transposed = false;
  bool b_transposed = false;
  bool bias = false;
  bool accumulate = false;    // C is added, whose type is D's; else ldc means nothing
  bool tokens_are_k = false;  // else n: the dimension that differs between micro-batches
  int32_t alignment = 16;     // of A, B and D in bytes, at most 16
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;
  bool operator==(const MatmulProblem&) const = default;
};

/// The problems that share one choice of algorithm: tokens rounded up to 2^i or 3 * 2^i.
MatmulProblem size_class(MatmulProblem problem);
/// One line that names the problem.
std::string to_string(const MatmulProblem& problem);

struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  const void* c = nullptr;  // may be d
  void* d = nullptr;
};

struct MatmulWorkspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

/// Not for problems with m, n or k of 0.
class MatmulLibrary {
 public:
  explicit MatmulLibrary(int device);
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  /// Launches. kMatmulWorkspace bytes of workspace let every algorithm run.
  void run(const MatmulProblem& problem, const MatmulOperands& operands,
           const MatmulWorkspace& workspace, cudaStream_t stream);
  /// What the first run of a problem does beforehand: its description and algorithm.
  void prepare(const MatmulProblem& problem) { (void)prepared(problem); }
  /// Whether the table holds a valid algorithm for the problem's class. One that is not valid is
  /// taken out, with a notice.
  bool has_choice(const MatmulProblem& problem);
  /// Measures candidates, overwriting D, and keeps the fastest for the class. Blocks.
  void tune(const MatmulProblem& problem, const MatmulOperands& operands,
            const MatmulWorkspace& workspace, cudaStream_t stream);

  std::string algorithms() const { return table_.text(); }
  void use_algorithms(std::string_view text);
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

 private:
  struct Description;
  struct Prepared;
  struct Hash {
    size_t operator()(const MatmulProblem& problem) const;
  };
  Prepared& prepared(const MatmulProblem& problem);
  /// Deterministic candidates within kMatmulWorkspace, the library's favourite first; may be none.
  std::vector<cublasLtMatmulAlgo_t> candidates(Description& description, int most) const;
  bool is_valid(Description& description, const cublasLtMatmulAlgo_t& algorithm) const;
  void multiply(const MatmulProblem& problem, Prepared& prepared, const MatmulOperands& operands,
                const MatmulWorkspace& workspace, cudaStream_t stream);
  float milliseconds(const MatmulProblem& problem, Prepared& prepared,
                     const MatmulOperands& operands, const MatmulWorkspace& workspace, int runs,
                     cudaStream_t stream);

  cublasLtHandle_t handle_ = nullptr;
  AlgorithmTable table_;
  std::unordered_map<MatmulProblem, Prepared, Hash> prepared_;
  std::vector<std::string> notices_;
};

}  // namespace trireme::cuda
