#include "base/math.h"
#include "cuda/attention_kernels.h"
#include "cuda/kernel_launch.cuh"
#include "cuda/kernel_pack.cuh"

namespace trireme::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kTileRows = 8;

/// The arrays of one group's calls.
struct GroupArrays {
  std::byte* begin;
  int64_t above;      // it has the sequences of more tokens
  int64_t length;     // and at most so many
  int64_t sequences;  // of a call
  int64_t calls;
  int64_t call_bytes;
  int64_t lengths_bytes;
  int64_t offsets_bytes;
};

struct RaggedLayout {
  GroupArrays groups[ops::LengthCounts::kClasses];
  int num_offsets;
  int64_t strides[kBackwardOffsets];
};

/// Writes entry i of a call: a sequence of `length` tokens from `first` on, or, at the end of the
/// offsets, where the next one begins.
__device__ void fill_entry(const RaggedLayout& layout, const GroupArrays& group, int64_t call,
                           int64_t i, int32_t first, int32_t length) {
  if (call >= group.calls) return;
  std::byte* const of_call = group.begin + call * group.call_bytes;
  if (i < group.sequences) reinterpret_cast<int32_t*>(of_call)[i] = length;
  std::byte* offsets = of_call + group.lengths_bytes;
  for (int k = 0; k < layout.num_offsets; ++k) {
    reinterpret_cast<int64_t*>(offsets)[i] = first * layout.strides[k];
    offsets += group.offsets_bytes;
  }
}

/// The `member`-th sequence of a group. The first of a call also ends the call before.
__device__ void fill_member(const RaggedLayout& layout, const GroupArrays& group, int64_t member,
                            int32_t first, int32_t length) {
  const int64_t call = member / group.sequences;
  const int64_t i = member % group.sequences;
  fill_entry(layout, group, call, i, first, length);
  if (i == 0 && call > 0) fill_entry(layout, group, call - 1, group.sequences, first, 0);
}

/// A block for each group, which finds the group's sequences in their order. Those beyond the last
/// have no tokens.
__global__ void __launch_bounds__(kThreads)
    fill_arrays(RaggedLayout layout, const int32_t* cu_seqlens, int64_t num_sequences) {
  constexpr int kWarp = 32;
  __shared__ int in_warps[kThreads / kWarp];
  const GroupArrays group = layout.groups[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t found = 0;
  for (int64_t begin = 0; begin < num_sequences; begin += kThreads) {
    const int64_t sequence = begin + threadIdx.x;
    const int32_t first = sequence < num_sequences ? cu_seqlens[sequence] : 0;
    const int32_t length = sequence < num_sequences ? cu_seqlens[sequence + 1] - first : 0;
    const bool is_member = length > group.above && length <= group.length;
    const unsigned members = __ballot_sync(~0u, is_member);
    if (lane == 0) in_warps[warp] = __popc(members);
    __syncthreads();
    int64_t member = found + __popc(members & ((1u << lane) - 1));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) member += in_warps[w];
      found += in_warps[w];
    }
    if (is_member) fill_member(layout, group, member, first, length);
    __syncthreads();
  }
  const int32_t end = cu_seqlens[num_sequences];
  const int64_t room = group.calls * group.sequences;
  if (found > room) __trap();  // no gradient rather than one without some sequences
  for (int64_t member = found + threadIdx.x; member <= room; member += kThreads) {
    fill_member(layout, group, member, end, 0);
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

void fill_ragged_arrays(void* arrays, const AttentionCalls& calls, int num_offsets,
                        const std::array<int64_t, kBackwardOffsets>& strides,
                        const TensorView& cu_seqlens, cudaStream_t stream) {
  RaggedLayout args{};
  args.num_offsets = num_offsets;
  for (int k = 0; k < num_offsets; ++k) args.strides[k] = strides[static_cast<size_t>(k)];
  auto* at = static_cast<std::byte*>(arrays);
  GroupArrays* to = args.groups;
  for (const AttentionGroup& group : calls.groups()) {
    const RaggedArrays of_call{group.sequences, num_offsets};
    *to++ = {at,
             group.above,
             group.length,
             group.sequences,
             group.count,
             of_call.call_bytes(),
             of_call.lengths_bytes(),
             of_call.offsets_bytes()};
    at += group.count * of_call.call_bytes();
  }
  launch("ragged arrays", fill_arrays,
         {dim3(static_cast<unsigned>(calls.groups().size())), dim3(kThreads)}, stream, args,
         data_of<const int32_t>(cu_seqlens), cu_seqlens.cols - 1);
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
