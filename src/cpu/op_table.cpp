#include "cpu/op_table.h"

#include <array>
#include <oneapi/dnnl/dnnl.hpp>

#include "base/error.h"
#include "cpu/kernel_product_bf16.h"
#include "cpu/op_bodies.h"
#include "cpu/op_matmul.h"
#include "ops/signature.h"

namespace trireme::cpu {

namespace {

using ops::OpKind;

/// One operation's bodies. Every one has both compute dtypes.
struct Row {
  OpKind kind;
  void (*body)(const ops::OpCall&, OpContext&);
  int64_t (*workspace)(const ops::OpCall&, const SizingInput&) = nullptr;  // null: none
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
    {OpKind::qk_norm_weight_grad, qk_norm_weight_grad, qk_norm_weight_grad_workspace},
    {OpKind::linear, linear, matmul_workspace},
    {OpKind::linear_input_grad, linear_input_grad, matmul_workspace},
    {OpKind::linear_weight_grad, linear_weight_grad, matmul_workspace},
    {OpKind::linear_bias_grad, linear_bias_grad},
    {OpKind::rope, rope},
    {OpKind::rope_input_grad, rope_input_grad},
    {OpKind::attention, attention, attention_workspace},
    {OpKind::attention_input_grad, attention_input_grad, attention_workspace},
    {OpKind::swiglu, swiglu},
    {OpKind::swiglu_input_grad, swiglu_input_grad},
    {OpKind::add, add},
    {OpKind::xent_stats, xent_stats},
    {OpKind::xent_combine, xent_combine},
    {OpKind::xent_loss, xent_loss},
    {OpKind::xent_grad, xent_grad},
    {OpKind::sum_squares, sum_squares, sum_squares_workspace},
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

}  // namespace

bool has_bf16_products() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return has_block_product_bf16() && (isa & wanted) == wanted;
}

OpContext::OpContext(int num_threads, bool bf16_products)
    : num_threads_(num_threads),
      bf16_products_(bf16_products),
      matmuls_(std::make_unique<MatmulCache>(num_threads)) {
  check(num_threads >= 1, "{} threads", num_threads);
}
OpContext::~OpContext() = default;

void run(const ops::OpCall& call, OpContext& context) {
  ops::check_call(call);
  const Row& row = row_of(call.kind);
  if (row.workspace != nullptr && row.workspace != matmul_workspace) {
    const int64_t needed = row.workspace(call, {context.num_threads(), context.bf16_products()});
    check(call.workspace_bytes >= needed, "{}: {} bytes of workspace, needs {}",
          ops::name_of(call.kind), call.workspace_bytes, needed);
  }
  row.body(call, context);
}

void prepare(const ops::OpCall& call, OpContext& context) {
  if (row_of(call.kind).workspace == matmul_workspace) prepare_matmul(call, context);
}

OpSizing::OpSizing(int num_threads, bool bf16_products)
    : num_threads_(num_threads), bf16_products_(bf16_products) {}

int64_t OpSizing::workspace_bytes(const ops::OpCall& call) const {
  const Row& row = row_of(call.kind);
  return row.workspace == nullptr ? 0 : row.workspace(call, {num_threads_, bf16_products_});
}

bool OpSizing::supports(ops::OpKind kind, DType dtype) const {
  return static_cast<int>(kind) < ops::kNumOps && (dtype == DType::f32 || dtype == DType::bf16);
}

}  // namespace trireme::cpu
