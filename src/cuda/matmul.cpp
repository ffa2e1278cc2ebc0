#include "cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <source_location>

#include "base/error.h"
#include "base/math.h"
#include "cuda/handle.h"
#include "cuda/matmul_simple.h"
#include "cuda/op_sizing.h"

namespace trireme::cuda {

namespace {

constexpr int kCandidates = 8;
/// A candidate must be so much faster than the library's favourite to be preferred to it.
constexpr float kWorthwhile = 0.99f;
/// Candidates slower than the best by more are not measured again.
constexpr float kNear = 1.1f;

void require_lt(cublasStatus_t status, std::string_view call,
                std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: {} ({}), at {}", call, cublasLtGetStatusString(status),
                                cublasLtGetStatusName(status), to_string(where)));
}

cudaDataType_t data_type(DType dtype) {
  check(dtype == DType::f32 || dtype == DType::bf16, "a matrix product of {}", name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

std::string library_name(int device) {
  cudaDeviceProp properties{};
  TRIREME_CUDA(cudaGetDeviceProperties(&properties, device));
  return fmt::format("cuBLASLt {}, {}, {} multiprocessors", cublasLtGetVersion(), properties.name,
                     properties.multiProcessorCount);
}

AlgorithmWords words_of(const cublasLtMatmulAlgo_t& algorithm) {
  static_assert(sizeof(AlgorithmWords) == sizeof(cublasLtMatmulAlgo_t));
  return std::bit_cast<AlgorithmWords>(algorithm);
}

/// Sums in a fixed order, kept in f32 until the end: no split of k, or parts in the workspace.
bool sums_in_order(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  const auto status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written);
  // Algorithms without this attribute do not split k.
  if (status != CUBLAS_STATUS_SUCCESS) return true;
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
         scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

int64_t round_tokens(int64_t tokens) {
  int64_t power = 1;
  while (2 * power <= tokens) power *= 2;
  if (tokens == power) return tokens;
  return 2 * tokens <= 3 * power ? 3 * power / 2 : 2 * power;
}

}  // namespace

MatmulProblem size_class(MatmulProblem problem) {
  int64_t& tokens = problem.tokens_are_k ? problem.k : problem.n;
  tokens = round_tokens(tokens);
  return problem;
}

std::string to_string(const MatmulProblem& p) {
  return fmt::format("{} to {}, {}{} {} x {} x {}, ld {} {} {}{}{}, aligned {}", name_of(p.input),
                     name_of(p.output), p.a_transposed ? 'T' : 'N', p.b_transposed ? 'T' : 'N', p.m,
                     p.n, p.k, p.lda, p.ldb, p.ldd, p.bias ? ", bias" : "",
                     p.accumulate ? fmt::format(", add {}", p.ldc) : "", p.alignment);
}

size_t MatmulLibrary::Hash::operator()(const MatmulProblem& p) const {
  uint64_t hash = 0;
  const auto mix = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  for (const int64_t value : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.ldd, int64_t{p.alignment}}) mix(value);
  mix(static_cast<int64_t>(p.input) | static_cast<int64_t>(p.output) << 4 | p.a_transposed << 8 |
      p.b_transposed << 9 | p.bias << 10 | p.accumulate << 11 | p.tokens_are_k << 12);
  return hash;
}

/// What cuBLASLt is told of a problem.
struct MatmulLibrary::Description {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t c{};
  cublasLtMatrixLayoutOpaque_t d{};
  uint32_t alignment;

  explicit Description(const MatmulProblem& p) : alignment(static_cast<uint32_t>(p.alignment)) {
    require_lt(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(p.input));
      // The heuristics judge the bias's alignment by its pointer.
      set_bias(reinterpret_cast<const void*>(uintptr_t{256}));
    }
    layout(a, p.input, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.lda);
    layout(b, p.input, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.ldb);
    layout(c, p.output, p.m, p.n, p.accumulate ? p.ldc : p.ldd);
    layout(d, p.output, p.m, p.n, p.ldd);
  }

  void set_bias(const void* bias) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    require_lt(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& to, DType dtype, int64_t rows, int64_t cols,
                     int64_t ld) {
    require_lt(cublasLtMatrixLayoutInit(&to, data_type(dtype), static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(cols), ld),
               "cublasLtMatrixLayoutInit");
  }
};

struct MatmulLibrary::Prepared {
  Description description;
  bool by_library = true;  // else by our own kernel
  cublasLtMatmulAlgo_t algorithm{};
};

MatmulLibrary::MatmulLibrary(int device) : table_(library_name(device)) {
  require_lt(cublasLtCreate(&handle_), "cublasLtCreate");
}

MatmulLibrary::~MatmulLibrary() { (void)cublasLtDestroy(handle_); }

std::vector<cublasLtMatmulAlgo_t> MatmulLibrary::candidates(Description& d, int most) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    require_lt(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
  };
  require_lt(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kMatmulWorkspace));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, d.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, d.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d.alignment);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(handle_, &d.operation, &d.a, &d.b, &d.c, &d.d,
                                                     &preference, most, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  require_lt(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(kMatmulWorkspace) &&
        sums_in_order(result.algo)) {
      algorithms.push_back(result.algo);
    }
  }
  return algorithms;
}

bool MatmulLibrary::is_valid(Description& d, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_, &d.operation, &d.a, &d.b, &d.c, &d.d, &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(kMatmulWorkspace) && sums_in_order(algorithm);
}

MatmulLibrary::Prepared& MatmulLibrary::prepared(const MatmulProblem& problem) {
  const auto found = prepared_.find(problem);
  if (found != prepared_.end()) return found->second;
  Prepared made{Description(problem)};
  const auto chosen = table_.find(to_string(size_class(problem)));
  if (chosen && is_valid(made.description, std::bit_cast<cublasLtMatmulAlgo_t>(*chosen))) {
    made.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*chosen);
  } else {
    // Of all that the heuristics offer, the first that sums in order.
    const auto algorithms = candidates(made.description, kCandidates);
    made.by_library = !algorithms.empty();
    if (made.by_library) made.algorithm = algorithms.front();
  }
  return prepared_.emplace(problem, made).first->second;
}

void MatmulLibrary::multiply(const MatmulProblem& problem, Prepared& made,
                             const MatmulOperands& operands, const MatmulWorkspace& workspace,
                             cudaStream_t stream) {
  if (!made.by_library) {
    simple_matmul(problem, operands, stream);
    return;
  }
  const float one = 1.0f;
  const float keep = problem.accumulate ? 1.0f : 0.0f;
  Description& d = made.description;
  if (problem.bias) d.set_bias(operands.bias);
  const auto status =
      cublasLtMatmul(handle_, &d.operation, &one, operands.a, &d.a, operands.b, &d.b, &keep,
                     problem.accumulate ? operands.c : operands.d, &d.c, operands.d, &d.d,
                     &made.algorithm, workspace.data,
                     static_cast<size_t>(workspace.bytes), stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    require_lt(status, fmt::format("cublasLtMatmul of {}", to_string(problem)));
  }
}

void MatmulLibrary::run(const MatmulProblem& problem, const MatmulOperands& operands,
                        const MatmulWorkspace& workspace, cudaStream_t stream) {
  multiply(problem, prepared(problem), operands, workspace, stream);
}

bool MatmulLibrary::has_choice(const MatmulProblem& problem) {
  const std::string key = to_string(size_class(problem));
  const auto chosen = table_.find(key);
  if (!chosen) return false;
  Description description(problem);
  if (is_valid(description, std::bit_cast<cublasLtMatmulAlgo_t>(*chosen))) return true;
  table_.erase(key);
  notices_.push_back(
      fmt::format("the saved algorithm for the product {} is not valid here; it is "
                  "measured again, and last bits may change",
                  key));
  return false;
}

float MatmulLibrary::milliseconds(const MatmulProblem& problem, Prepared& made,
                                  const MatmulOperands& operands, const MatmulWorkspace& workspace,
                                  int runs, cudaStream_t stream) {
  const EventHandle begin(cudaEventDefault);
  const EventHandle end(cudaEventDefault);
  TRIREME_CUDA(cudaEventRecord(begin.get(), stream));
  for (int i = 0; i < runs; ++i) multiply(problem, made, operands, workspace, stream);
  TRIREME_CUDA(cudaEventRecord(end.get(), stream));
  TRIREME_CUDA(cudaEventSynchronize(end.get()));
  float time = 0;
  TRIREME_CUDA(cudaEventElapsedTime(&time, begin.get(), end.get()));
  return time / static_cast<float>(runs);
}

void MatmulLibrary::tune(const MatmulProblem& problem, const MatmulOperands& operands,
                         const MatmulWorkspace& workspace, cudaStream_t stream) {
  struct Candidate {
    Prepared prepared;
    float time;
  };
  std::vector<Candidate> measured;
  Description description(problem);
  const auto time = [&](Candidate& candidate, int runs) {
    return milliseconds(problem, candidate.prepared, operands, workspace, runs, stream);
  };
  for (const auto& algorithm : candidates(description, kCandidates)) {
    Candidate candidate{{description, true, algorithm}, 0};
    (void)time(candidate, 1);  // loads its kernel
    candidate.time = time(candidate, 1);
    measured.push_back(candidate);
  }
  if (measured.empty()) return;
  const auto faster = [](const Candidate& a, const Candidate& b) { return a.time < b.time; };
  // Again for those that are near the best, long enough to tell them apart.
  float best = std::min_element(measured.begin(), measured.end(), faster)->time;
  const int runs = std::clamp(static_cast<int>(3.0f / best), 1, 10);
  const float limit = best * kNear;
  for (int round = 0; round < 2; ++round) {
    for (Candidate& candidate : measured) {
      if (candidate.time > limit) continue;
      const float again = time(candidate, runs);
      candidate.time = round == 0 ? again : std::min(candidate.time, again);
    }
  }
  const auto chosen = std::min_element(measured.begin(), measured.end(), faster);
  const bool worthwhile = chosen->time < kWorthwhile * measured.front().time;
  const Candidate& kept = worthwhile ? *chosen : measured.front();
  table_.set(to_string(size_class(problem)), words_of(kept.prepared.algorithm));
  prepared_.clear();
}

void MatmulLibrary::use_algorithms(std::string_view text) {
  if (!table_.read(text)) {
    notices_.push_back(
        "the saved algorithms of matrix products are for another library or GPU; "
        "they are measured again, and last bits may change");
  }
  prepared_.clear();
}

}  // namespace trireme::cuda
