#include "cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <source_location>
#include <utility>

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
/// Candidates slower than the best of short bursts by more are not measured again.
constexpr float kNear = 1.1f;
/// Milliseconds: of load before the first measurement; of a burst; of a candidate's turn, whose first
/// third is not measured. And how many turns each has: short ones, so that all meet the same
/// clocks, which wander by more than candidates differ when a GPU is at its power limit.
constexpr float kHeat = 30;
constexpr float kBurst = 1;
constexpr float kTurn = 6;
constexpr int kTurns = 4;

/// Runs of `time` milliseconds that take about so long.
int runs_for(float milliseconds, float time) {
  constexpr float kMost = 2000;
  return static_cast<int>(std::clamp(milliseconds / std::max(time, 1e-3f), 1.0f, kMost));
}

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
  constexpr int64_t kTile = 256;  // tokens of a tile, which has 128 of the other dimension
  constexpr int64_t kFewTiles = int64_t{4} * 132;
  int64_t& tokens = problem.tokens_are_k ? problem.k : problem.n;
  const int64_t tiles = ceil_div(problem.m, 128) * ceil_div(problem.n, kTile);
  const bool few = !problem.tokens_are_k && tokens > kTile && tiles < kFewTiles;
  tokens = few ? round_up(tokens, kTile) : round_tokens(tokens);
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

struct MatmulLibrary::Trial {
  const MatmulProblem& problem;
  const MatmulOperands& operands;
  const MatmulWorkspace& workspace;
  cudaStream_t stream;
};

struct MatmulLibrary::Candidate {
  Prepared prepared;
  float time = 0;  // milliseconds of a run
};

MatmulLibrary::MatmulLibrary(int device, const std::string& cache)
    : table_(library_name(device)), cache_(cache, library_name(device)) {
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
  Description description(problem);
  const auto valid = [&](const AlgorithmWords& words) {
    return is_valid(description, std::bit_cast<cublasLtMatmulAlgo_t>(words));
  };
  if (const auto chosen = table_.find(key)) {
    if (valid(*chosen)) {
      table_.use(key);
      return true;
    }
    table_.erase(key);
    notices_.push_back(
        fmt::format("the saved algorithm for the product {} is not valid here; it is "
                    "measured again, and last bits may change",
                    key));
  }
  const auto kept = cache_.find(key);
  if (!kept || !valid(*kept)) return false;
  table_.set(key, *kept);
  prepared_.clear();
  return true;
}

float MatmulLibrary::milliseconds(const Trial& trial, Prepared& made, int runs) {
  const auto run = [&] {
    multiply(trial.problem, made, trial.operands, trial.workspace, trial.stream);
  };
  const EventHandle begin(cudaEventDefault);
  const EventHandle end(cudaEventDefault);
  const int unmeasured = runs / 3;
  for (int i = 0; i < unmeasured; ++i) run();
  TRIREME_CUDA(cudaEventRecord(begin.get(), trial.stream));
  for (int i = unmeasured; i < runs; ++i) run();
  TRIREME_CUDA(cudaEventRecord(end.get(), trial.stream));
  TRIREME_CUDA(cudaEventSynchronize(end.get()));
  float time = 0;
  TRIREME_CUDA(cudaEventElapsedTime(&time, begin.get(), end.get()));
  return time / static_cast<float>(runs - unmeasured);
}

/// The heuristics judge by waves of tiles, and for some sizes they offer none of the algorithms that
/// are best there and that they do offer a few tiles beside.
std::vector<cublasLtMatmulAlgo_t> MatmulLibrary::candidates_around(const MatmulProblem& problem,
                                                                   Description& description) const {
  std::vector<cublasLtMatmulAlgo_t> found = candidates(description, kCandidates);
  for (const int64_t beside : {-128, 128, -256, 256, -512}) {
    MatmulProblem other = problem;
    int64_t& tokens = other.tokens_are_k ? other.k : other.n;
    tokens += beside;
    if (tokens <= 0) continue;
    Description described(other);
    for (const auto& algorithm : candidates(described, kCandidates)) {
      const auto same = [&](const auto& each) { return words_of(each) == words_of(algorithm); };
      if (std::ranges::none_of(found, same) && is_valid(description, algorithm)) {
        found.push_back(algorithm);
      }
    }
  }
  return found;
}

/// The library's favourite and what is not far slower than the best.
std::vector<MatmulLibrary::Candidate> MatmulLibrary::quick_ones(const Trial& trial) {
  std::vector<Candidate> found;
  Description description(trial.problem);
  for (const auto& algorithm : candidates_around(trial.problem, description)) {
    found.push_back({{description, true, algorithm}});
    (void)milliseconds(trial, found.back().prepared, 1);  // loads its kernel
  }
  if (found.size() < 2) return found;
  const float time = milliseconds(trial, found.front().prepared, 1);
  (void)milliseconds(trial, found.front().prepared, runs_for(kHeat, time));
  float best = std::numeric_limits<float>::infinity();
  for (Candidate& candidate : found) {
    candidate.time = milliseconds(trial, candidate.prepared, runs_for(kBurst, time));
    best = std::min(best, candidate.time);
  }
  found.erase(std::remove_if(found.begin() + 1, found.end(),
                             [&](const Candidate& each) { return each.time > kNear * best; }),
              found.end());
  return found;
}

/// The candidates take turns, so that all of them meet the same clocks.
void MatmulLibrary::measure(const Trial& trial, std::vector<Candidate>& candidates) {
  std::vector<float> sums(candidates.size(), 0.0f);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& candidate = candidates[i];
      sums[i] += milliseconds(trial, candidate.prepared, runs_for(kTurn, candidate.time));
    }
  }
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].time = sums[i] / kTurns;
}

void MatmulLibrary::tune(const MatmulProblem& problem, const MatmulOperands& operands,
                         const MatmulWorkspace& workspace, cudaStream_t stream) {
  const Trial trial{problem, operands, workspace, stream};
  std::vector<Candidate> measured = quick_ones(trial);
  if (measured.empty()) return;
  if (measured.size() > 1) measure(trial, measured);
  const auto chosen =
      std::min_element(measured.begin(), measured.end(),
                       [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  const bool worthwhile = chosen->time < kWorthwhile * measured.front().time;
  const Candidate& kept = worthwhile ? *chosen : measured.front();
  table_.set(to_string(size_class(problem)), words_of(kept.prepared.algorithm));
  ++measured_;
  prepared_.clear();
}

void MatmulLibrary::keep_algorithms() {
  const int measured = std::exchange(measured_, 0);
  if (measured == 0 || !cache_.add(table_)) return;
  notices_.push_back(
      fmt::format("{} matrix products were measured; later runs find the choices in {}", measured,
                  cache_.file().string()));
}

std::vector<std::string> MatmulLibrary::take_notices() {
  std::vector<std::string> all = cache_.take_notices();
  all.insert(all.end(), notices_.begin(), notices_.end());
  notices_.clear();
  return all;
}

std::string MatmulLibrary::use_algorithms(std::span<const std::string> texts) {
  const std::string notice =
      "the saved algorithms of matrix products are for another library or GPU; "
      "they are measured again, and last bits may change";
  const bool known = std::ranges::find(notices_, notice) != notices_.end();
  if (!table_.read(texts) && !known) notices_.push_back(notice);
  prepared_.clear();
  return table_.text();
}

}  // namespace trireme::cuda
