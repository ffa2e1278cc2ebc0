#include "cuda/op_table.h"

#include <cuda_runtime.h>

#include <array>

#include "base/error.h"
#include "cuda/attention_cudnn.h"
#include "cuda/handle.h"
#include "cuda/matmul.h"
#include "cuda/op_attention.h"
#include "cuda/op_bodies.h"
#include "cuda/op_matmul.h"
#include "ops/signature.h"

namespace trireme::cuda {

namespace {

using ops::OpKind;

/// One operation's bodies. Every one has both compute dtypes.
struct Row {
  OpKind kind;
  Body* body;
  void (*prepare)(const ops::OpCall&, OpContext&) = nullptr;  // null: nothing
  void (*tune)(const ops::OpCall&, OpContext&) = nullptr;
};

constexpr std::array<Row, ops::kNumOps> kTable = {{
    {OpKind::embedding, embedding},
    {OpKind::embedding_weight_grad, embedding_weight_grad},
    {OpKind::rms_norm, rms_norm},
    {OpKind::rms_norm_input_grad, rms_norm_input_grad},
    {OpKind::rms_norm_weight_grad, rms_norm_weight_grad},
    {OpKind::rms_norm_grad, rms_norm_grad},
    {OpKind::qk_norm, qk_norm},
    {OpKind::qk_norm_input_grad, qk_norm_input_grad},
    {OpKind::qk_norm_weight_grad, qk_norm_weight_grad},
    {OpKind::linear, linear, prepare_matmul, tune_matmul},
    {OpKind::linear_input_grad, linear_input_grad, prepare_matmul, tune_matmul},
    {OpKind::linear_weight_grad, linear_weight_grad, prepare_matmul, tune_matmul},
    {OpKind::linear_bias_grad, linear_bias_grad},
    {OpKind::rope, rope},
    {OpKind::rope_input_grad, rope_input_grad},
    {OpKind::attention, attention, prepare_attention},
    {OpKind::attention_input_grad, attention_input_grad, prepare_attention},
    {OpKind::swiglu, swiglu},
    {OpKind::swiglu_input_grad, swiglu_input_grad},
    {OpKind::add, add},
    {OpKind::xent_stats, xent_stats},
    {OpKind::xent_combine, xent_combine},
    {OpKind::xent_loss, xent_loss},
    {OpKind::xent_grad, xent_grad},
    {OpKind::sum_squares, sum_squares},
    {OpKind::step_control, step_control},
    {OpKind::clear_pending, clear_pending},
    {OpKind::adamw, adamw},
    {OpKind::sgd, sgd},
    {OpKind::import_master, import_master},
    {OpKind::export_master, export_master},
    {OpKind::zero, zero},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].kind) != i) return false;
  }
  return true;
}
static_assert(in_order(), "one row for each OpKind, in order");

const Row& row_of(OpKind kind) {
  check(static_cast<int>(kind) < ops::kNumOps, "no operation {}", static_cast<int>(kind));
  return kTable[static_cast<size_t>(kind)];
}

int capability_of(int device) {
  int major = 0;
  int minor = 0;
  TRIREME_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TRIREME_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

}  // namespace

OpContext::OpContext(int device, bool deterministic, const std::string& algorithm_cache)
    : device_(device),
      compute_capability_(capability_of(device)),
      deterministic_(deterministic),
      matmuls_(std::make_unique<MatmulLibrary>(device, algorithm_cache)),
      attentions_(std::make_unique<AttentionLibrary>()) {}

OpContext::~OpContext() = default;

std::string OpContext::algorithms() const { return matmuls_->algorithms(); }
std::string OpContext::use_algorithms(std::span<const std::string> texts) {
  return matmuls_->use_algorithms(texts);
}
std::vector<std::string> OpContext::take_notices() { return matmuls_->take_notices(); }

void run(const ops::OpCall& call, OpContext& context, CUstream_st* stream) {
  ops::check_call(call);
  const int64_t needed = context.sizing().workspace_bytes(call);
  check(call.workspace_bytes >= needed, "{}: {} bytes of workspace, needs {}",
        ops::name_of(call.kind), call.workspace_bytes, needed);
  row_of(call.kind).body(call, context, stream);
}

void prepare(const ops::OpCall& call, OpContext& context) {
  const Row& row = row_of(call.kind);
  if (row.prepare != nullptr) row.prepare(call, context);
}

void tune(const ops::OpCall& call, OpContext& context) {
  const Row& row = row_of(call.kind);
  if (row.tune != nullptr) row.tune(call, context);
}

}  // namespace trireme::cuda
