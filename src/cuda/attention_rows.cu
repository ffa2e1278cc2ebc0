#include "base/math.h"
#include "cuda/attention_kernels.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kTileRows = 8;

struct RaggedLayout {
  std::byte* arrays;
  int64_t call_bytes;
  int64_t lengths_bytes;
  int64_t offsets_bytes;
  int64_t sequences;  // of a call
  int64_t calls;
  int num_offsets;
  int64_t strides[kBackwardOffsets];
};

/// A thread for each offset of each call. A sequence beyond the last has no tokens.
__global__ void __launch_bounds__(kThreads)
    fill_arrays(RaggedLayout layout, const int32_t* cu_seqlens, int64_t num_sequences) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t call = thread / (layout.sequences + 1);
  const int64_t i = thread % (layout.sequences + 1);
  if (call >= layout.calls) return;
  const int64_t sequence = call * layout.sequences + i;
  const int64_t begin = sequence < num_sequences ? sequence : num_sequences;
  const int64_t end = sequence + 1 < num_sequences ? sequence + 1 : num_sequences;
  const int32_t first = cu_seqlens[begin];
  std::byte* of_call = layout.arrays + call * layout.call_bytes;
  if (i < layout.sequences) reinterpret_cast<int32_t*>(of_call)[i] = cu_seqlens[end] - first;
  std::byte* offsets = of_call + layout.lengths_bytes;
  for (int k = 0; k < layout.num_offsets; ++k) {
    reinterpret_cast<int64_t*>(offsets)[i] = first * layout.strides[k];
    offsets += layout.offsets_bytes;
  }
}

/// to(cols, rows) = from(rows, cols) transposed; columns of `to` from *num_valid on are 0.
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose(Rows<float> to, Rows<const float> from, int64_t rows, int64_t cols,
              const int32_t* num_valid) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_col = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t valid = num_valid != nullptr ? *num_valid : rows;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t row = first_row + i;
    const int64_t col = first_col + threadIdx.x;
    if (row < rows && col < cols) {
      tile[i][threadIdx.x] = row < valid ? from[row][col] : 0.0f;
    }
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t row = first_row + threadIdx.x;
    const int64_t col = first_col + i;
    if (row < rows && col < cols) to[col][row] = tile[threadIdx.x][i];
  }
}

void launch_transpose(Rows<float> to, Rows<const float> from, int64_t rows, int64_t cols,
                      const int32_t* num_valid, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return;
  launch(
      "transpose", transpose,
      {dim3(blocks(ceil_div(rows, kTile)), blocks(ceil_div(cols, kTile))), dim3(kTile, kTileRows)},
      stream, to, from, rows, cols, num_valid);
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    zero_from(Rows<T> view, int64_t num_rows, int64_t packs, const int32_t* num_valid) {
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (p >= packs) return;
  const float zeros[kCount] = {};
  for (int64_t row = *num_valid + blockIdx.y; row < num_rows; row += gridDim.y) {
    store_pack(view[row] + p * kCount, zeros);
  }
}

const int32_t* last_of(const TensorView& cu_seqlens) {
  return data_of<const int32_t>(cu_seqlens) + cu_seqlens.cols - 1;
}

}  // namespace

void fill_ragged_arrays(void* arrays, const RaggedArrays& layout, const AttentionCalls& calls,
                        const std::array<int64_t, kBackwardOffsets>& strides,
                        const TensorView& cu_seqlens, cudaStream_t stream) {
  RaggedLayout args{};
  args.arrays = static_cast<std::byte*>(arrays);
  args.call_bytes = layout.call_bytes();
  args.lengths_bytes = layout.lengths_bytes();
  args.offsets_bytes = layout.offsets_bytes();
  args.sequences = layout.sequences;
  args.calls = calls.count;
  args.num_offsets = layout.num_offsets;
  for (int k = 0; k < layout.num_offsets; ++k) args.strides[k] = strides[static_cast<size_t>(k)];
  launch("ragged arrays", fill_arrays,
         {dim3(blocks(ceil_div(calls.count * (layout.sequences + 1), kThreads))), dim3(kThreads)},
         stream, args, data_of<const int32_t>(cu_seqlens), cu_seqlens.cols - 1);
}

void statistics_to_lse(const TensorView& lse, const float* statistics, const TensorView& cu_seqlens,
                       cudaStream_t stream) {
  launch_transpose(rows_of<float>(lse), {statistics, lse.rows}, lse.cols, lse.rows,
                   last_of(cu_seqlens), stream);
}

void lse_to_statistics(float* statistics, const TensorView& lse, cudaStream_t stream) {
  launch_transpose({statistics, lse.rows}, rows_of<const float>(lse), lse.rows, lse.cols, nullptr,
                   stream);
}

void zero_padding(const TensorView& view, const TensorView& cu_seqlens, cudaStream_t stream) {
  if (view.size() == 0) return;
  with_access(
      view.dtype, [&](int64_t count) { return fits_packs(view, count); },
      [&](auto access) {
        using A = decltype(access);
        using T = typename A::T;
        const int64_t packs = view.cols / A::kCount;
        launch(
            "zero padding", zero_from<T, A::kCount>,
            {dim3(blocks(ceil_div(packs, kThreads)), some_blocks(view.rows, 64)), dim3(kThreads)},
            stream, rows_of<T>(view), view.rows, packs, last_of(cu_seqlens));
      });
}

}  // namespace trireme::cuda
