#include "cpu/op_matmul.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <list>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/math.h"
#include "cpu/kernel_view.h"
#include "cpu/op_bodies.h"

namespace trireme::cpu {

namespace {

constexpr size_t kMaxPrepared = 1024;

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// oneDNN takes the thread count of a primitive from the calling thread's OpenMP setting.
class ThreadCount {
 public:
  explicit ThreadCount(int num_threads) : before_(omp_get_max_threads()) {
    if (before_ != num_threads) omp_set_num_threads(num_threads);
    changed_ = before_ != num_threads;
  }
  ~ThreadCount() {
    if (changed_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
  bool changed_ = false;
};

template <typename Function>
auto call_dnnl(const Product& p, const Function& function) {
  try {
    return function();
  } catch (const dnnl::error& error) {
    throw DeviceError(fmt::format("oneDNN product {} x {} x {} of {} to {}: {} (status {})", p.m,
                                  p.n, p.k, name_of(p.input), name_of(p.output), error.message,
                                  static_cast<int>(error.status)));
  }
}

dnnl::matmul::primitive_desc describe(const Product& p, const dnnl::engine& engine) {
  return call_dnnl(p, [&] {
    using dnnl::memory;
    const memory::desc a({p.m, p.k}, dnnl_type(p.input), memory::dims{p.a_row, p.a_column});
    const memory::desc b({p.k, p.n}, dnnl_type(p.input), memory::dims{p.b_row, p.b_column});
    const memory::desc c({p.m, p.n}, dnnl_type(p.output), memory::dims{p.c_row, 1});
    const memory::desc bias({1, p.n}, dnnl_type(p.input), memory::dims{p.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops after;
      after.append_sum(1.0f);
      attributes.set_post_ops(after);
    }
    const auto descriptor =
        p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    return dnnl::matmul::primitive_desc(descriptor, attributes, engine);
  });
}

struct ProductHash {
  size_t operator()(const Product& p) const {
    size_t hash = 0;
    for (const int64_t value :
         {p.m, p.n, p.k, p.a_row, p.a_column, p.b_row, p.b_column, p.c_row,
          static_cast<int64_t>(p.input) * 64 + static_cast<int64_t>(p.output) * 4 +
              static_cast<int64_t>(p.bias) * 2 + static_cast<int64_t>(p.accumulate)}) {
      hash ^= static_cast<size_t>(value) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};

/// A primitive with its arguments; only their data pointers change from call to call.
struct Prepared {
  Product product;
  dnnl::matmul primitive;
  std::array<dnnl::memory, 5> memories;  // a, b, c, scratch, bias
  std::array<dnnl_exec_arg_t, 5> arguments;
  int num_arguments = 0;
  int64_t scratch_bytes = 0;

  Prepared(const Product& p, const dnnl::engine& engine) : product(p) {
    const auto description = describe(p, engine);
    primitive = call_dnnl(p, [&] { return dnnl::matmul(description); });
    const auto scratch = description.scratchpad_desc();
    scratch_bytes = static_cast<int64_t>(scratch.get_size());
    add(description.src_desc(), DNNL_ARG_SRC, engine);
    add(description.weights_desc(), DNNL_ARG_WEIGHTS, engine);
    add(description.dst_desc(), DNNL_ARG_DST, engine);
    add(scratch, DNNL_ARG_SCRATCHPAD, engine);
    if (p.bias) add(description.bias_desc(), DNNL_ARG_BIAS, engine);
  }

  void add(const dnnl::memory::desc& desc, int name, const dnnl::engine& engine) {
    const auto i = static_cast<size_t>(num_arguments++);
    memories[i] = dnnl::memory(desc, engine, nullptr);
    arguments[i] = {name, memories[i].get()};
  }
};

}  // namespace

struct MatmulCache::State {
  int num_threads;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::list<Prepared> latest_first;
  std::unordered_map<Product, std::list<Prepared>::iterator, ProductHash> index;
  std::unique_ptr<std::byte, decltype(&std::free)> spare{nullptr, &std::free};
  int64_t spare_bytes = 0;

  Prepared& get(const Product& product) {
    const auto found = index.find(product);
    if (found != index.end()) {
      latest_first.splice(latest_first.begin(), latest_first, found->second);
      return latest_first.front();
    }
    if (index.size() >= kMaxPrepared) {
      index.erase(latest_first.back().product);
      latest_first.pop_back();
    }
    latest_first.emplace_front(product, engine);
    index.emplace(product, latest_first.begin());
    return latest_first.front();
  }

  void* scratch(int64_t bytes) {
    if (spare_bytes < bytes) {
      spare.reset(static_cast<std::byte*>(
          std::aligned_alloc(64, static_cast<size_t>(round_up(bytes, 4096)))));
      if (spare == nullptr) throw_errno("aligned_alloc", "matrix product scratch");
      spare_bytes = bytes;
    }
    return spare.get();
  }
};

MatmulCache::MatmulCache(int num_threads) : state_(std::make_unique<State>()) {
  state_->num_threads = num_threads;
}
MatmulCache::~MatmulCache() = default;

int64_t MatmulCache::size() const { return static_cast<int64_t>(state_->index.size()); }

void MatmulCache::prepare(const Product& product) {
  const ThreadCount threads(state_->num_threads);
  state_->get(product);
}

void MatmulCache::run(const Product& product, const ProductData& data, void* workspace,
                      int64_t workspace_bytes) {
  check(product.m > 0 && product.n > 0 && product.k > 0, "a product of {} x {} x {}", product.m,
        product.n, product.k);
  const ThreadCount threads(state_->num_threads);
  Prepared& prepared = state_->get(product);
  void* scratch = prepared.scratch_bytes <= workspace_bytes
                      ? workspace
                      : state_->scratch(prepared.scratch_bytes);
  const std::array<const void*, 5> pointers = {data.a, data.b, data.c, scratch, data.bias};
  for (int i = 0; i < prepared.num_arguments; ++i) {
    const auto at = static_cast<size_t>(i);
    // dnnl_memory takes mutable handles for inputs too.
    dnnl_memory_set_data_handle(prepared.memories[at].get(), const_cast<void*>(pointers[at]));
  }
  const auto status = dnnl_primitive_execute(prepared.primitive.get(), state_->stream.get(),
                                             prepared.num_arguments, prepared.arguments.data());
  if (status != dnnl_success) {
    throw DeviceError(fmt::format("oneDNN product {} x {} x {}: execute failed (status {})",
                                  product.m, product.n, product.k, static_cast<int>(status)));
  }
}

int64_t product_scratch_bytes(const Product& product, int num_threads) {
  const ThreadCount threads(num_threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return static_cast<int64_t>(describe(product, engine).scratchpad_desc().get_size());
}

namespace {

/// A call as a product: which views are a, b, c and whether they are read transposed.
struct MatmulCall {
  Product product;
  TensorView a, b, c, bias;
  bool a_transposed = false;
  bool b_transposed = false;

  /// Derives the strides of the product from the views.
  void set_strides() {
    const auto stride = [](const TensorView& view) { return std::max(view.stride, view.cols); };
    product.a_row = a_transposed ? 1 : stride(a);
    product.a_column = a_transposed ? stride(a) : 1;
    product.b_row = b_transposed ? 1 : stride(b);
    product.b_column = b_transposed ? stride(b) : 1;
    product.c_row = stride(c);
  }
};

bool has_residual(const ops::OpCall& call) {
  return call.kind == ops::OpKind::linear && call.args[4].present();
}

MatmulCall as_matmul(const ops::OpCall& call) {
  const auto& args = call.args;
  MatmulCall m;
  m.c = args[0];
  m.a = args[1];
  m.b = args[2];
  m.product.input = call.dtype;
  m.product.output = m.c.dtype;
  m.product.accumulate = call.law == ops::Law::add;
  m.product.m = m.c.rows;
  m.product.n = m.c.cols;
  if (call.kind == ops::OpKind::linear) {
    m.product.k = m.a.cols;
    m.b_transposed = true;
    m.bias = args[3];
    m.product.bias = m.bias.present();
    m.product.accumulate = has_residual(call);
  } else if (call.kind == ops::OpKind::linear_input_grad) {
    m.product.k = m.a.cols;
  } else {
    m.product.k = m.a.rows;
    m.a_transposed = true;
  }
  m.set_strides();
  return m;
}

/// Where f32 copies of bf16 operands lie in the workspace, behind the scratch.
struct Copies {
  int64_t a, b, bias, c;  // byte offsets
  int64_t end;
  explicit Copies(const MatmulCall& m) {
    const auto f32_bytes = [](const TensorView& view) { return round_up(view.size() * 4, 64); };
    a = 0;
    b = a + f32_bytes(m.a);
    bias = b + f32_bytes(m.b);
    c = bias + f32_bytes(m.bias);
    end = c + (m.c.dtype == DType::bf16 ? f32_bytes(m.c) : 0);
  }
};

/// The product of dense f32 copies of the operands.
MatmulCall widened(MatmulCall m) {
  const auto dense = [](TensorView& view) {
    view.dtype = DType::f32;
    view.stride = view.cols;
  };
  dense(m.a);
  dense(m.b);
  dense(m.bias);
  if (m.c.dtype == DType::bf16) {
    dense(m.c);
    m.product.accumulate = false;  // the copy back adds
  }
  m.product.input = DType::f32;
  m.product.output = DType::f32;
  m.set_strides();
  return m;
}

void run_widened(const MatmulCall& m, const ops::OpCall& call, OpContext& context) {
  const Copies copies(m);
  auto* base = static_cast<std::byte*>(call.workspace);
  const auto at = [base](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
  MatmulCall wide = widened(m);
  widen_matrix(m.a, at(copies.a), context);
  widen_matrix(m.b, at(copies.b), context);
  if (m.bias.present()) widen_matrix(m.bias, at(copies.bias), context);
  const bool narrow_output = m.c.dtype == DType::bf16;
  void* c = narrow_output ? at(copies.c) : m.c.data;
  context.matmuls().run(wide.product, {at(copies.a), at(copies.b), at(copies.bias), c},
                        base + copies.end, call.workspace_bytes - copies.end);
  if (narrow_output) {
    narrow_matrix(at(copies.c), m.c, m.product.accumulate, context);
  }
}

/// The residual into the result, to which the product is then added.
void copy_residual(const ops::OpCall& call, OpContext& context) {
  ops::OpCall copy;
  copy.kind = ops::OpKind::add;
  copy.dtype = call.args[0].dtype;
  copy.num_args = 2;
  copy.args[0] = call.args[0];
  copy.args[1] = call.args[4];
  add(copy, context);
}

void matmul(const ops::OpCall& call, OpContext& context) {
  const MatmulCall m = as_matmul(call);
  if (m.product.m == 0 || m.product.n == 0) return;
  if (has_residual(call)) copy_residual(call, context);
  if (m.product.k == 0) {
    if (!m.product.accumulate) zero_matrix(m.c, context);
    return;
  }
  if (call.dtype == DType::bf16 && !context.bf16_products()) {
    run_widened(m, call, context);
    return;
  }
  context.matmuls().run(m.product, {m.a.data, m.b.data, m.bias.data, m.c.data}, call.workspace,
                        call.workspace_bytes);
}

/// The dimension of a product that is the number of rows (tokens) of a call.
int64_t& rows_of(ops::OpKind kind, Product& product) {
  return kind == ops::OpKind::linear_weight_grad ? product.k : product.m;
}

}  // namespace

void linear(const ops::OpCall& call, OpContext& context) { matmul(call, context); }
void linear_input_grad(const ops::OpCall& call, OpContext& context) { matmul(call, context); }
void linear_weight_grad(const ops::OpCall& call, OpContext& context) { matmul(call, context); }

int64_t matmul_workspace(const ops::OpCall& call, const SizingInput& input) {
  MatmulCall m = as_matmul(call);
  if (m.product.m == 0 || m.product.n == 0 || m.product.k == 0) return 0;
  int64_t copies = 0;
  if (call.dtype == DType::bf16 && !input.bf16_products) {
    copies = Copies(m).end;
    m = widened(m);
  }
  // The blocking, and with it the scratch, depends on the number of rows in no simple way: ask for
  // many of the row counts that the call may have. All grow flat after the first few blocks.
  Product product = m.product;
  int64_t& rows = rows_of(call.kind, product);
  const int64_t most = rows;
  int64_t scratch = product_scratch_bytes(product, input.num_threads);
  for (int64_t step = 16, sampled = step; sampled < most; sampled += step) {
    rows = sampled;
    scratch = std::max(scratch, product_scratch_bytes(product, input.num_threads));
    if (sampled >= 64 * step) step *= 2;
  }
  return copies + round_up(scratch, 64);
}

void prepare_matmul(const ops::OpCall& call, OpContext& context) {
  MatmulCall m = as_matmul(call);
  if (m.product.m == 0 || m.product.n == 0 || m.product.k == 0) return;
  if (call.dtype == DType::bf16 && !context.bf16_products()) m = widened(m);
  context.matmuls().prepare(m.product);
}

}  // namespace trireme::cpu
