// Attention by cuDNN: plans, built once for each class of calls.
#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

namespace trireme::cuda {

/// What a plan is made for. Strides are of rows, in elements.
struct AttentionPlanKey {
  bool backward = false;
  bool ragged = false;
  bool deterministic = false;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t sequences = 0;
  int64_t length = 0;  // of each sequence, or the longest planned
  int64_t window = 0;  // keys [i - window + 1, i]; 0: all up to i
  float scale = 0;
  int64_t qkv_stride = 0;
  int64_t out_stride = 0;
  int64_t d_qkv_stride = 0;  // backward
  int64_t d_out_stride = 0;  // backward
  auto operator<=>(const AttentionPlanKey&) const = default;
};

/// Addresses of one call. Query, key and value heads lie side by side in the rows of qkv and d_qkv;
/// statistics (log of the sum of exponentials) are (tokens, heads):f32.
struct AttentionOperands {
  void* qkv = nullptr;
  void* out = nullptr;
  void* statistics = nullptr;
  void* d_out = nullptr;
  void* d_qkv = nullptr;
  // Ragged: i32 (sequences), then i64 (sequences + 1) each, in elements; 16-byte aligned.
  void* lengths = nullptr;
  void* qkv_offsets = nullptr;
  void* out_offsets = nullptr;
  void* statistics_offsets = nullptr;
  void* d_out_offsets = nullptr;
  void* d_qkv_offsets = nullptr;
};

class AttentionLibrary {
 public:
  /// Opens cuDNN at the first plan.
  AttentionLibrary();
  ~AttentionLibrary();
  AttentionLibrary(const AttentionLibrary&) = delete;
  AttentionLibrary& operator=(const AttentionLibrary&) = delete;

  /// Builds the plan (about half a second). DeviceError when cuDNN has none, or wants more than
  /// `workspace_bytes`.
  void prepare(const AttentionPlanKey& key, int64_t workspace_bytes);
  /// Launches the plan, building it first where prepare() did not. bf16. Rows of padding are not
  /// written.
  void run(const AttentionPlanKey& key, const AttentionOperands& operands, void* workspace,
           int64_t workspace_bytes, cudaStream_t stream);

 private:
  class Plan;
  struct Handle;
  Plan& plan(const AttentionPlanKey& key, int64_t workspace_bytes);

  std::unique_ptr<Handle> handle_;
  std::map<AttentionPlanKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace trireme::cuda
