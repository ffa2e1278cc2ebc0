// Operations after their first call take no memory. Counts every malloc of the process, libraries
// included. oneDNN makes a map of its arguments in each execution (6 or 7 pieces, 300 bytes, freed
// at the end of the call): all that is tolerated here.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "cpu/op_table.h"
#include "ops/control.h"
#include "ops/signature.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
std::atomic<int64_t> num_allocations{0};
std::atomic<int64_t> num_bytes{0};
void count(size_t bytes) {
  ++num_allocations;
  num_bytes += static_cast<int64_t>(bytes);
}
}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) {
  count(number * bytes);
  return __libc_calloc(number, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  count(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace trireme::cpu {
namespace {

constexpr int64_t kTokens = 256;
constexpr int kThreads = 2;

/// All operands of every call live in one zeroed block, each in its own part.
class Calls {
 public:
  explicit Calls(DType t) : t_(t), memory_(size_t{64} << 20) {}

  ops::OpCall call(ops::OpKind kind, std::vector<TensorView> args) {
    ops::OpCall made;
    made.kind = kind;
    made.dtype = t_;
    for (TensorView& view : args) {
      if (view.size() > 0) view.data = take(view.size() * size_of(view.dtype));
      made.args[static_cast<size_t>(made.num_args++)] = view;
    }
    auto& a = made.attributes;
    a.heads = 4;
    a.kv_heads = 2;
    a.head_dim = 32;
    a.longest = kTokens;
    a.attention_scale = 0.2f;
    a.beta1 = a.beta2 = 0.9;
    made.workspace_bytes = OpSizing(kThreads).workspace_bytes(made);
    made.workspace = take(made.workspace_bytes);
    return made;
  }

  /// Updates of state that is all of T: under bf16 stochastically rounded.
  std::vector<ops::OpCall> narrow_updates() {
    const auto flat = [](DType dtype, int64_t size) {
      return TensorView{nullptr, dtype, 1, size, size};
    };
    const TensorView state = flat(t_, 40000);
    const TensorView grad = flat(DType::f32, 40000);
    const TensorView control = flat(DType::f64, ops::kControlSize);
    return {call(ops::OpKind::adamw, {state, TensorView{}, state, state, grad, control}),
            call(ops::OpKind::sgd, {state, TensorView{}, grad, control})};
  }

  /// One call of each kind.
  std::vector<ops::OpCall> all() {
    using ops::OpKind;
    const DType f32 = DType::f32, i32 = DType::i32, f64 = DType::f64;
    const auto rows = [](DType dtype, int64_t cols) {
      return TensorView{nullptr, dtype, kTokens, cols, cols};
    };
    const auto flat = [](DType dtype, int64_t size) {
      return TensorView{nullptr, dtype, 1, size, size};
    };
    const auto weight = [](DType dtype) { return TensorView{nullptr, dtype, 320, 256, 256}; };
    const auto gains = [](DType dtype) { return TensorView{nullptr, dtype, 2, 32, 32}; };
    const TensorView tokens = flat(i32, kTokens), row = rows(t_, 256);
    const TensorView remainder = t_ == DType::bf16 ? flat(DType::i16, 40000) : TensorView{};
    const TensorView control = flat(f64, ops::kControlSize);
    std::vector<ops::OpCall> calls = {
        call(OpKind::embedding, {rows(t_, 256), weight(t_), tokens}),
        call(OpKind::embedding_weight_grad, {weight(f32), rows(t_, 256), tokens, tokens}),
        call(OpKind::rms_norm, {row, flat(f32, kTokens), row, flat(t_, 256)}),
        call(OpKind::rms_norm_input_grad, {row, row, row, flat(t_, 256), flat(f32, kTokens)}),
        call(OpKind::rms_norm_weight_grad, {flat(f32, 256), row, row, flat(f32, kTokens)}),
        call(OpKind::rms_norm_grad,
             {flat(f32, 256), row, row, row, flat(t_, 256), flat(f32, kTokens), row}),
        call(OpKind::qk_norm, {rows(t_, 256), rows(t_, 256), gains(t_)}),
        call(OpKind::qk_norm_input_grad, {rows(t_, 256), rows(t_, 256), rows(t_, 256), gains(t_)}),
        call(OpKind::qk_norm_weight_grad, {gains(f32), rows(t_, 256), rows(t_, 256)}),
        call(OpKind::linear, {rows(t_, 320), rows(t_, 256), weight(t_), flat(t_, 320)}),
        call(OpKind::linear_input_grad, {rows(t_, 256), rows(t_, 320), weight(t_)}),
        call(OpKind::linear_weight_grad, {weight(f32), rows(t_, 320), rows(t_, 256)}),
        call(OpKind::linear_bias_grad, {flat(f32, 320), rows(t_, 320)}),
        call(OpKind::rope, {rows(t_, 256), rows(t_, 256), rows(f32, 32), tokens}),
        call(OpKind::rope_input_grad, {rows(t_, 256), rows(t_, 256), rows(f32, 32), tokens}),
        call(OpKind::attention, {rows(t_, 128), TensorView{nullptr, f32, 4, kTokens, kTokens},
                                 rows(t_, 256), flat(i32, 2)}),
        call(OpKind::attention_input_grad,
             {rows(t_, 256), rows(t_, 128), rows(t_, 256), rows(t_, 128),
              TensorView{nullptr, f32, 4, kTokens, kTokens}, flat(i32, 2)}),
        call(OpKind::swiglu, {rows(t_, 128), rows(t_, 256)}),
        call(OpKind::swiglu_input_grad,
             {rows(t_, 256), TensorView{}, rows(t_, 128), rows(t_, 256)}),
        call(OpKind::add, {rows(t_, 256), rows(t_, 256), rows(t_, 256)}),
        call(OpKind::xent_stats, {rows(f32, 3), rows(t_, 320), rows(t_, 320), tokens}),
        call(OpKind::xent_combine, {rows(f32, 3), rows(f32, 3), tokens}),
        call(OpKind::xent_loss, {flat(f64, 2), rows(f32, 3), tokens}),
        call(OpKind::xent_grad, {rows(t_, 320), rows(t_, 320), rows(f32, 3), tokens}),
        call(OpKind::sum_squares, {flat(f64, 1), flat(f32, 40000)}),
        call(OpKind::step_control, {control, flat(f64, 3), flat(f64, 4)}),
        call(OpKind::adamw, {flat(t_, 40000), remainder, flat(f32, 40000), flat(f32, 40000),
                             flat(f32, 40000), control}),
        call(OpKind::sgd, {flat(t_, 40000), remainder, flat(f32, 40000), control}),
        call(OpKind::clear_pending, {control}),
        call(OpKind::import_master, {flat(t_, 40000), remainder, flat(f32, 40000)}),
        call(OpKind::export_master, {flat(f32, 40000), flat(t_, 40000), remainder}),
        call(OpKind::zero, {rows(f32, 320)}),
    };
    for (ops::OpCall& c : calls) {
      if (c.kind != OpKind::attention && c.kind != OpKind::attention_input_grad) continue;
      c.args[static_cast<size_t>(c.num_args - 1)].as<int32_t>()[1] = kTokens;
    }
    return calls;
  }

 private:
  void* take(int64_t bytes) {
    void* const taken =
        memory_.data() + used_ + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64);
    used_ += static_cast<size_t>((bytes + 127) / 64 * 64);
    EXPECT_LT(used_ + 64, memory_.size());
    return taken;
  }

  DType t_;
  std::vector<std::byte> memory_;
  size_t used_ = 0;
};

TEST(OpAllocations, NoneAfterTheFirstCall) {
  OpContext context(kThreads);
  for (const DType t : {DType::f32, DType::bf16}) {
    Calls calls(t);
    auto all = calls.all();
    ASSERT_EQ(all.size(), static_cast<size_t>(ops::kNumOps));
    for (const ops::OpCall& narrow : calls.narrow_updates()) all.push_back(narrow);
    for (const auto& c : all) run(c, context);
    for (const auto& c : all) {
      num_allocations = 0;
      num_bytes = 0;
      for (int i = 0; i < 10; ++i) run(c, context);
      const int64_t allocations = num_allocations;
      const int64_t bytes = num_bytes;
      const bool product = c.kind == ops::OpKind::linear ||
                           c.kind == ops::OpKind::linear_input_grad ||
                           c.kind == ops::OpKind::linear_weight_grad;
      const bool by_library = product && (t == DType::f32 || context.bf16_products());
      EXPECT_LE(allocations, by_library ? 10 * 8 : 0) << ops::name_of(c.kind);
      EXPECT_LE(bytes, by_library ? 10 * 512 : 0) << ops::name_of(c.kind);
    }
  }
}

/// What prepare() promises: the first call of a shape then needs no more than any other.
TEST(OpAllocations, PreparedProductsDoNotPrepareAgain) {
  OpContext context(kThreads);
  Calls calls(DType::f32);
  const auto all = calls.all();
  for (const auto& c : all) run(c, context);  // threads and tables exist
  OpContext fresh(kThreads);
  for (const auto& c : all) prepare(c, fresh);
  for (const auto& c : all) {
    num_allocations = 0;
    run(c, fresh);
    EXPECT_LE(num_allocations, 20) << ops::name_of(c.kind);
  }
}

}  // namespace
}  // namespace trireme::cpu
