// Matrix products by cuBLASLt: descriptions, algorithms and their choice.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "cuda/algorithm_cache.h"
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

/// The problems that share one choice of algorithm: tokens rounded up to 2^i or 3 * 2^i. Where the
/// tiles of a product are few waves of an H200's multiprocessors, how full the last wave is decides
/// which algorithm is the best, and tokens are rounded up to a tile.
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
  /// `cache`: folder, or "".
  MatmulLibrary(int device, const std::string& cache);
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  /// Launches. kMatmulWorkspace bytes of workspace let every algorithm run.
  void run(const MatmulProblem& problem, const MatmulOperands& operands,
           const MatmulWorkspace& workspace, cudaStream_t stream);
  /// What the first run of a problem does beforehand: its description and algorithm.
  void prepare(const MatmulProblem& problem) { (void)prepared(problem); }
  /// Whether the table or the cache holds a valid algorithm for the problem's class, which is then
  /// in use. One of the table that is not valid is taken out, with a notice.
  bool has_choice(const MatmulProblem& problem);
  /// Measures candidates, overwriting D, and keeps the fastest for the class. Blocks, for up to
  /// half a second.
  void tune(const MatmulProblem& problem, const MatmulOperands& operands,
            const MatmulWorkspace& workspace, cudaStream_t stream);

  void keep_algorithms();
  std::string algorithms() const { return table_.text_of_used(); }
  std::string use_algorithms(std::span<const std::string> texts);
  std::vector<std::string> take_notices();

 private:
  struct Description;
  struct Prepared;
  struct Hash {
    size_t operator()(const MatmulProblem& problem) const;
  };
  Prepared& prepared(const MatmulProblem& problem);
  /// Deterministic candidates within kMatmulWorkspace, the library's favourite first; may be none.
  std::vector<cublasLtMatmulAlgo_t> candidates(Description& description, int most) const;
  /// Those of the problem, then what is valid of those of problems of about its size.
  std::vector<cublasLtMatmulAlgo_t> candidates_around(const MatmulProblem& problem,
                                                      Description& description) const;
  bool is_valid(Description& description, const cublasLtMatmulAlgo_t& algorithm) const;
  void multiply(const MatmulProblem& problem, Prepared& prepared, const MatmulOperands& operands,
                const MatmulWorkspace& workspace, cudaStream_t stream);
  struct Trial;
  struct Candidate;
  /// How long one run takes on average of so many.
  float milliseconds(const Trial& trial, Prepared& prepared, int runs);
  std::vector<Candidate> quick_ones(const Trial& trial);
  void measure(const Trial& trial, std::vector<Candidate>& candidates);

  cublasLtHandle_t handle_ = nullptr;
  AlgorithmTable table_;
  AlgorithmCache cache_;
  int measured_ = 0;  // that the cache does not know
  std::unordered_map<MatmulProblem, Prepared, Hash> prepared_;
  std::vector<std::string> notices_;
};

}  // namespace trireme::cuda
