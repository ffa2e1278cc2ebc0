// The one file that includes cudnn-frontend, which takes most of a minute to compile.
#include "cuda/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <source_location>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "cuda/handle.h"

namespace trireme::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<int64_t>;

/// Names of a graph's tensors when it runs.
enum Uid : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOut,
  kStatistics,
  kDOut,
  kDQueries,
  kDKeys,
  kDValues,
  kLengths,
  kQkvOffsets,
  kOutOffsets,
  kStatisticsOffsets,
  kDOutOffsets,
  kDQkvOffsets,
};

void require_cudnn(cudnnStatus_t status, std::string_view call,
                   std::source_location where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = {};
  cudnnGetLastErrorString(detail, sizeof detail);
  throw DeviceError(fmt::format("{}: {}{}{}, at {}", call, cudnnGetErrorString(status),
                                detail[0] == '\0' ? "" : ": ", detail, to_string(where)));
}

std::string describe(const AttentionPlanKey& key) {
  return fmt::format("{}{}attention{} of {} x {} tokens, {} heads and {} key heads of {}{}",
                     key.deterministic ? "deterministic " : "", key.ragged ? "ragged " : "",
                     key.backward ? " gradient" : "", key.sequences, key.length, key.heads,
                     key.kv_heads, key.head_dim,
                     key.window > 0 ? fmt::format(", window {}", key.window) : std::string());
}

void require_fe(fe::error_t error, std::string_view call, const AttentionPlanKey& key) {
  if (error.is_good()) return;
  throw DeviceError(fmt::format("cuDNN {}: {} for {}", cudnnGetVersion(), call, describe(key)) +
                    ": " + error.get_message());
}

/// Builds one graph.
class GraphBuilder {
 public:
  explicit GraphBuilder(const AttentionPlanKey& key)
      : key_(key), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> build() {
    if (key_.ragged) {
      lengths_ = graph_->tensor(fe::graph::Tensor_attributes()
                                    .set_name("lengths")
                                    .set_uid(kLengths)
                                    .set_dim({key_.sequences, 1, 1, 1})
                                    .set_stride({1, 1, 1, 1})
                                    .set_data_type(fe::DataType_t::INT32));
      qkv_offsets_ = offsets("qkv_offsets", kQkvOffsets);
      out_offsets_ = offsets("out_offsets", kOutOffsets);
      statistics_offsets_ = offsets("statistics_offsets", kStatisticsOffsets);
    }
    if (key_.backward) {
      backward();
    } else {
      forward();
    }
    return graph_;
  }

 private:
  Sizes dims(int64_t heads, int64_t width) const {
    return {key_.sequences, heads, key_.length, width};
  }
  Sizes strides(int64_t row) const { return {key_.length * row, key_.head_dim, row, 1}; }
  /// (tokens, heads): heads side by side.
  Sizes statistics_strides() const { return {key_.length * key_.heads, 1, key_.heads, 1}; }

  Tensor offsets(const char* name, Uid uid) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim({key_.sequences + 1, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT64));
  }

  Tensor input(const char* name, Uid uid, const Sizes& dim, const Sizes& stride,
               const Tensor& offset) {
    const Tensor tensor = graph_->tensor(
        fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(dim).set_stride(stride));
    if (offset) tensor->set_ragged_offset(offset);
    return tensor;
  }
  static void output(const Tensor& tensor, Uid uid, const Sizes& dim, const Sizes& stride,
                     const Tensor& offset) {
    tensor->set_output(true).set_uid(uid).set_dim(dim).set_stride(stride);
    if (offset) tensor->set_ragged_offset(offset);
  }

  void inputs() {
    const Sizes stride = strides(key_.qkv_stride);
    queries_ = input("queries", kQueries, dims(key_.heads, key_.head_dim), stride, qkv_offsets_);
    keys_ = input("keys", kKeys, dims(key_.kv_heads, key_.head_dim), stride, qkv_offsets_);
    values_ = input("values", kValues, dims(key_.kv_heads, key_.head_dim), stride, qkv_offsets_);
  }

  /// What forward and backward attributes have in common: causal, windowed, ragged.
  template <typename Attributes>
  void set_mask(Attributes& attributes) const {
    attributes.set_attn_scale(key_.scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (key_.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    if (key_.ragged) {
      attributes.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    }
  }

  void forward() {
    inputs();
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("attention").set_generate_stats(true);
    set_mask(attributes);
    const auto [out, statistics] = graph_->sdpa(queries_, keys_, values_, attributes);
    output(out, kOut, dims(key_.heads, key_.head_dim), strides(key_.out_stride), out_offsets_);
    output(statistics, kStatistics, dims(key_.heads, 1), statistics_strides(), statistics_offsets_);
    statistics->set_data_type(fe::DataType_t::FLOAT);
  }

  void backward() {
    inputs();
    const Sizes of_heads = dims(key_.heads, key_.head_dim);
    const Sizes of_kv_heads = dims(key_.kv_heads, key_.head_dim);
    Tensor d_out_offsets, d_qkv_offsets;
    if (key_.ragged) {
      d_out_offsets = offsets("d_out_offsets", kDOutOffsets);
      d_qkv_offsets = offsets("d_qkv_offsets", kDQkvOffsets);
    }
    const Tensor out = input("out", kOut, of_heads, strides(key_.out_stride), out_offsets_);
    const Tensor d_out = input("d_out", kDOut, of_heads, strides(key_.d_out_stride), d_out_offsets);
    const Tensor statistics = input("statistics", kStatistics, dims(key_.heads, 1),
                                    statistics_strides(), statistics_offsets_);
    statistics->set_data_type(fe::DataType_t::FLOAT);
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_name("attention_gradient").set_deterministic_algorithm(key_.deterministic);
    set_mask(attributes);
    const auto [d_queries, d_keys, d_values] =
        graph_->sdpa_backward(queries_, keys_, values_, out, d_out, statistics, attributes);
    const Sizes stride = strides(key_.d_qkv_stride);
    output(d_queries, kDQueries, of_heads, stride, d_qkv_offsets);
    output(d_keys, kDKeys, of_kv_heads, stride, d_qkv_offsets);
    output(d_values, kDValues, of_kv_heads, stride, d_qkv_offsets);
  }

  const AttentionPlanKey& key_;
  std::shared_ptr<fe::graph::Graph> graph_;
  Tensor lengths_, qkv_offsets_, out_offsets_, statistics_offsets_;
  Tensor queries_, keys_, values_;
};

}  // namespace

struct AttentionLibrary::Handle {
  cudnnHandle_t cudnn = nullptr;
  Handle() { require_cudnn(cudnnCreate(&cudnn), "cudnnCreate"); }
  ~Handle() { (void)cudnnDestroy(cudnn); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

class AttentionLibrary::Plan {
 public:
  Plan(const AttentionPlanKey& key, cudnnHandle_t handle)
      : key_(key), graph_(GraphBuilder(key).build()) {
    require_fe(graph_->validate(), "validate", key);
    require_fe(graph_->build_operation_graph(handle), "build_operation_graph", key);
    require_fe(graph_->create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans", key);
    require_fe(graph_->check_support(), "check_support", key);
    require_fe(graph_->build_plans(), "build_plans", key);
    require_fe(graph_->get_workspace_size(workspace_bytes_), "get_workspace_size", key);
  }

  int64_t workspace_bytes() const { return workspace_bytes_; }

  void run(const AttentionOperands& o, void* workspace, cudnnHandle_t handle) {
    const auto column = [&](void* qkv, int64_t heads) -> void* {
      return static_cast<std::byte*>(qkv) + heads * key_.head_dim * 2;
    };
    pointers_[kQueries] = o.qkv;
    pointers_[kKeys] = column(o.qkv, key_.heads);
    pointers_[kValues] = column(o.qkv, key_.heads + key_.kv_heads);
    pointers_[kOut] = o.out;
    pointers_[kStatistics] = o.statistics;
    if (key_.ragged) {
      pointers_[kLengths] = o.lengths;
      pointers_[kQkvOffsets] = o.qkv_offsets;
      pointers_[kOutOffsets] = o.out_offsets;
      pointers_[kStatisticsOffsets] = o.statistics_offsets;
    }
    if (key_.backward) {
      pointers_[kDOut] = o.d_out;
      pointers_[kDQueries] = o.d_qkv;
      pointers_[kDKeys] = column(o.d_qkv, key_.heads);
      pointers_[kDValues] = column(o.d_qkv, key_.heads + key_.kv_heads);
      if (key_.ragged) {
        pointers_[kDOutOffsets] = o.d_out_offsets;
        pointers_[kDQkvOffsets] = o.d_qkv_offsets;
      }
    }
    require_fe(graph_->execute(handle, pointers_, workspace), "execute", key_);
  }

 private:
  AttentionPlanKey key_;
  std::shared_ptr<fe::graph::Graph> graph_;
  int64_t workspace_bytes_ = 0;
  std::unordered_map<int64_t, void*> pointers_;  // by Uid; kept, so that runs allocate nothing
};

AttentionLibrary::AttentionLibrary() = default;
AttentionLibrary::~AttentionLibrary() = default;

AttentionLibrary::Plan& AttentionLibrary::plan(const AttentionPlanKey& key,
                                               int64_t workspace_bytes) {
  auto& made = plans_[key];
  if (!made) {
    if (!handle_) handle_ = std::make_unique<Handle>();
    made = std::make_unique<Plan>(key, handle_->cudnn);
  }
  if (made->workspace_bytes() > workspace_bytes) {
    throw DeviceError(fmt::format("cuDNN {} wants {} bytes of workspace for {}, {} were planned",
                                  cudnnGetVersion(), made->workspace_bytes(), describe(key),
                                  workspace_bytes));
  }
  return *made;
}

void AttentionLibrary::prepare(const AttentionPlanKey& key, int64_t workspace_bytes) {
  (void)plan(key, workspace_bytes);
}

void AttentionLibrary::run(const AttentionPlanKey& key, const AttentionOperands& operands,
                           void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
  Plan& ready = plan(key, workspace_bytes);
  require_cudnn(cudnnSetStream(handle_->cudnn, stream), "cudnnSetStream");
  ready.run(operands, workspace, handle_->cudnn);
}

}  // namespace trireme::cuda
