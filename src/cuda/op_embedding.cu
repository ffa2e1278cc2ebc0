// Rows of the embedding table, and their gradient: tokens sorted by id, summed without atomics.
//
// The sorted tokens are cut into chunks of kTokens. A block sums the runs of one id inside its
// chunk. A run that begins there goes into the table; the part of a run that came from earlier
// chunks is kept apart, and the second kernel adds those parts, in order, to the run's beginning.
#include "base/math.h"
#include "cuda/fill.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"
#include "cuda/op_bodies.h"
#include "cuda/op_sizing.h"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 8;  // rows loaded before the first is added
constexpr int kTokens = static_cast<int>(EmbeddingChunks::kTokens);
static_assert(kTokens % kAhead == 0 && kTokens + 2 <= kThreads);

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    copy_rows(Rows<T> out, Rows<const T> table, const int32_t* ids, ops::HeldVocab held,
              int64_t num_rows, int64_t packs) {
  constexpr int kPerThread = 4;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const int64_t from = held.index_of(ids[row]);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
    Pack<T, kCount> read[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first + i * kThreads;
      if (p < packs && from >= 0) read[i] = load_pack<kCount>(table[from] + p * kCount);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t p = first + i * kThreads;
      if (p >= packs) continue;
      float values[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = from >= 0 ? read[i][k] : 0.0f;
      store_pack(out[row] + p * kCount, values);
    }
  }
}

/// The sorted tokens as kernels see them. Those with a row in the table lie together.
struct SortedTokens {
  const int32_t* ids;
  const int32_t* order;
  int64_t count;
  ops::HeldVocab held;

  /// Row in the table of the sorted token at `place`; -1: none.
  __device__ int64_t row_at(int64_t place) const {
    if (place < 0 || place >= count) return -1;
    const int32_t token = order[place];
    return token >= 0 ? held.index_of(ids[token]) : -1;
  }
};

/// blockIdx (chunk, strip of columns). carried(chunks, cols).
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(Rows<float> table, float* carried, Rows<const T> d_out, SortedTokens tokens,
               int64_t cols, bool accumulate) {
  __shared__ int32_t token_of[kTokens];    // -1: has no row
  // Of the token before the chunk, then of the chunk's; an end that is no row.
  __shared__ int64_t row_of[kTokens + 2];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokens;
  if (threadIdx.x < kTokens) {
    const int64_t place = begin + threadIdx.x;
    token_of[threadIdx.x] = tokens.row_at(place) >= 0 ? tokens.order[place] : -1;
  }
  if (threadIdx.x < kTokens + 1) {
    row_of[threadIdx.x] = tokens.row_at(begin + static_cast<int64_t>(threadIdx.x) - 1);
  }
  if (threadIdx.x == kTokens + 1) row_of[threadIdx.x] = -1;
  __syncthreads();
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= cols) return;
  float sums[kCount] = {};
  bool begins_here = row_of[0] < 0 || row_of[0] != row_of[1];
  for (int group = 0; group < kTokens; group += kAhead) {
    Pack<T, kCount> rows[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t token = token_of[group + i];
      if (token >= 0) rows[i] = load_pack<kCount>(d_out[token] + column);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = group + i;
      if (token_of[at] < 0) continue;
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += rows[i][k];
      const int64_t row = row_of[at + 1];
      const bool run_ends = row_of[at + 2] != row;
      if (!run_ends) continue;
      float* to = begins_here ? table[row] + column : carried + blockIdx.x * cols + column;
      if (begins_here && accumulate) {
        const auto before = load_pack<kCount>(to);
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] += before[k];
      }
      store_pack(to, sums);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] = 0.0f;
      begins_here = true;
    }
  }
}

/// First chunk from `chunk` on that does not begin with a token of `row`.
__device__ int64_t end_of_run(const SortedTokens& tokens, int64_t chunk, int64_t num_chunks,
                              int64_t row) {
  int64_t low = chunk + 1;
  int64_t high = num_chunks;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (tokens.row_at(middle * kTokens) == row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Adds what chunks kept apart to the table. blockIdx (chunk - 1, strip of columns): the block of
/// the chunk after the one where a run begins adds all of that run's parts.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    add_carried(Rows<float> table, const float* carried, SortedTokens tokens, int64_t num_chunks,
                int64_t cols) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) + 1;
  const int64_t place = chunk * kTokens;
  const int64_t row = tokens.row_at(place);
  if (row < 0 || tokens.row_at(place - 1) != row) return;
  const bool began_before = tokens.row_at(place - kTokens - 1) == row;
  if (began_before) return;
  const int64_t end = end_of_run(tokens, chunk, num_chunks, row);
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= cols) return;
  float* to = table[row] + column;
  const auto before = load_pack<kCount>(to);
  float sums[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[k] = before[k];
#pragma unroll 8
  for (int64_t c = chunk; c < end; ++c) {
    const auto part = load_pack<kCount>(carried + c * cols + column);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += part[k];
  }
  store_pack(to, sums);
}

}  // namespace

void embedding(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& out = call.args[0];
  const TensorView& table = call.args[1];
  if (out.rows == 0 || out.cols == 0) return;
  const auto fits = [&](int64_t count) { return all_fit(count, out, table); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const int64_t packs = out.cols / A::kCount;
    launch("embedding", copy_rows<T, A::kCount>,
           {dim3(blocks(ceil_div(packs, kThreads * 4)), some_blocks(out.rows)), dim3(kThreads)},
           stream, rows_of<T>(out), rows_of<const T>(table), data_of<const int32_t>(call.args[2]),
           call.attributes.held_vocab(table.rows), out.rows, packs);
  });
}

void embedding_weight_grad(const ops::OpCall& call, OpContext&, cudaStream_t stream) {
  const TensorView& table = call.args[0];
  const TensorView& d_out = call.args[1];
  if (table.cols == 0) return;
  if (call.law == ops::Law::set) zero_rows(table, stream);
  if (d_out.rows == 0) return;
  const SortedTokens tokens{data_of<const int32_t>(call.args[2]),
                            data_of<const int32_t>(call.args[3]), d_out.rows,
                            call.attributes.held_vocab(table.rows)};
  auto* carried = static_cast<float*>(call.workspace);
  const int64_t num_chunks = EmbeddingChunks::count(d_out.rows);
  const auto fits = [&](int64_t count) { return all_fit(count, d_out, table); };
  with_access(call.dtype, fits, [&](auto access) {
    using A = decltype(access);
    using T = typename A::T;
    const int64_t strips = ceil_div(table.cols, kThreads * A::kCount);
    launch("embedding_weight_grad", sum_chunks<T, A::kCount>,
           {dim3(blocks(num_chunks), blocks(strips)), dim3(kThreads)}, stream,
           rows_of<float>(table), carried, rows_of<const T>(d_out), tokens, table.cols,
           call.law == ops::Law::add);
    if (num_chunks == 1) return;
    launch("embedding_weight_grad of long runs", add_carried<A::kCount>,
           {dim3(blocks(num_chunks - 1), blocks(strips)), dim3(kThreads)}, stream,
           rows_of<float>(table), carried, tokens, num_chunks, table.cols);
  });
}

}  // namespace trireme::cuda
