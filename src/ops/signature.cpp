#include "ops/signature.h"

#include <array>

#include "base/error.h"

namespace trireme::ops {

namespace {

constexpr int kMaxOperands = 7;

struct Row {
  OpKind kind;
  std::string_view name;
  int num_operands;
  std::array<Operand, kMaxOperands> operands;
  std::array<int8_t, 2> alias;  // of outputs 0 and 1
};

constexpr Operand in(std::string_view name) { return {name, Access::read, false, false}; }
constexpr Operand out(std::string_view name) { return {name, Access::write, false, false}; }
constexpr Operand law(std::string_view name) { return {name, Access::write, true, false}; }
constexpr Operand both(std::string_view name) { return {name, Access::update, false, false}; }
constexpr Operand optional(Operand operand) {
  operand.optional = true;
  return operand;
}

template <typename... Operands>
constexpr Row row(OpKind kind, std::string_view name, std::array<int8_t, 2> alias,
                  Operands... operands) {
  static_assert(sizeof...(Operands) <= kMaxOperands && kMaxOperands <= kMaxArgs);
  return {kind, name, static_cast<int>(sizeof...(Operands)), {{operands...}}, alias};
}

constexpr std::array<int8_t, 2> kNoAlias = {-1, -1};

constexpr std::array<Row, kNumOps> kRows = {{
    row(OpKind::embedding, "embedding", kNoAlias, out("out"), in("table"), in("ids")),
    row(OpKind::embedding_weight_grad, "embedding_weight_grad", kNoAlias, law("d_table"),
        in("d_out"), in("ids"), in("order")),
    row(OpKind::rms_norm, "rms_norm", {2, -1}, out("y"), out("rstd"), in("x"), in("gain")),
    row(OpKind::rms_norm_input_grad, "rms_norm_input_grad", {1, -1}, law("dx"), in("dy"), in("x"),
        in("gain"), in("rstd")),
    row(OpKind::rms_norm_weight_grad, "rms_norm_weight_grad", kNoAlias, law("d_gain"), in("dy"),
        in("x"), in("rstd")),
    row(OpKind::rms_norm_grad, "rms_norm_grad", {-1, 2}, law("d_gain"), out("dx"), in("dy"),
        in("x"), in("gain"), in("rstd"), optional(in("before"))),
    row(OpKind::qk_norm, "qk_norm", {1, -1}, out("y"), in("qkv"), in("gain")),
    row(OpKind::qk_norm_input_grad, "qk_norm_input_grad", {1, -1}, out("d_qkv"), in("d_y"),
        in("qkv"), in("gain")),
    row(OpKind::qk_norm_weight_grad, "qk_norm_weight_grad", kNoAlias, law("d_gain"), in("d_y"),
        in("qkv")),
    row(OpKind::linear, "linear", kNoAlias, out("y"), in("x"), in("weight"), optional(in("bias")),
        optional(in("residual"))),
    row(OpKind::linear_input_grad, "linear_input_grad", kNoAlias, law("dx"), in("dy"),
        in("weight")),
    row(OpKind::linear_weight_grad, "linear_weight_grad", kNoAlias, law("d_weight"), in("dy"),
        in("x")),
    row(OpKind::linear_bias_grad, "linear_bias_grad", kNoAlias, law("d_bias"), in("dy")),
    row(OpKind::rope, "rope", {1, -1}, out("out"), in("qkv"), in("table"), in("positions")),
    row(OpKind::rope_input_grad, "rope_input_grad", {1, -1}, out("d_in"), in("d_out"), in("table"),
        in("positions")),
    row(OpKind::attention, "attention", kNoAlias, out("out"), out("lse"), in("qkv"),
        in("cu_seqlens")),
    row(OpKind::attention_input_grad, "attention_input_grad", kNoAlias, out("d_qkv"), in("d_out"),
        in("qkv"), in("out"), in("lse"), in("cu_seqlens")),
    row(OpKind::swiglu, "swiglu", kNoAlias, out("out"), in("gate_up")),
    row(OpKind::swiglu_input_grad, "swiglu_input_grad", {3, 2}, out("d_gate_up"),
        optional(out("out")), in("d_out"), in("gate_up")),
    row(OpKind::add, "add", {1, -1}, law("out"), in("a"), optional(in("b"))),
    row(OpKind::xent_stats, "xent_stats", {-1, 2}, out("stats"), optional(out("d_logits")),
        in("logits"), in("targets")),
    row(OpKind::xent_combine, "xent_combine", kNoAlias, out("stats"), in("parts"), in("targets")),
    row(OpKind::xent_loss, "xent_loss", kNoAlias, law("sums"), in("stats"), in("targets")),
    row(OpKind::xent_grad, "xent_grad", {1, -1}, out("d_logits"), in("logits"), in("stats"),
        in("targets")),
    row(OpKind::sum_squares, "sum_squares", kNoAlias, law("sum"), in("x")),
    row(OpKind::step_control, "step_control", kNoAlias, both("control"), in("sums"),
        in("schedule")),
    row(OpKind::clear_pending, "clear_pending", kNoAlias, both("control")),
    row(OpKind::adamw, "adamw", kNoAlias, both("value"), optional(both("remainder")), both("m"),
        both("v"), in("grad"), in("control")),
    row(OpKind::sgd, "sgd", kNoAlias, both("value"), optional(both("remainder")), in("grad"),
        in("control")),
    row(OpKind::import_master, "import_master", {2, -1}, out("value"), optional(out("remainder")),
        in("master")),
    row(OpKind::export_master, "export_master", {1, -1}, out("master"), in("value"),
        optional(in("remainder"))),
    row(OpKind::zero, "zero", kNoAlias, out("out")),
}};

constexpr bool in_order() {
  for (int i = 0; i < kNumOps; ++i) {
    if (static_cast<int>(kRows[static_cast<size_t>(i)].kind) != i) return false;
  }
  return true;
}
static_assert(in_order(), "one row for each OpKind, in order");

const Row& row_of(OpKind kind) {
  check(static_cast<int>(kind) < kNumOps, "no operation {}", static_cast<int>(kind));
  return kRows[static_cast<size_t>(kind)];
}

}  // namespace

std::string_view name_of(OpKind kind) { return row_of(kind).name; }

std::span<const Operand> signature(OpKind kind) {
  const Row& row = row_of(kind);
  return {row.operands.data(), static_cast<size_t>(row.num_operands)};
}

int may_alias(OpKind kind, int output) {
  const Row& row = row_of(kind);
  return output >= 0 && output < 2 ? row.alias[static_cast<size_t>(output)] : -1;
}

}  // namespace trireme::ops
