#include "plan/tensor_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "model/adjoint.h"
#include "model/graph_builder.h"

namespace trireme::plan {

namespace {

using model::Dim;
using model::Dims;
using model::ModelConfig;
using model::ModelGraph;
using model::Node;
using model::NodeKind;
using model::Parameter;
using model::Ref;
using model::Slot;
using model::Split;
using model::UnitGraph;
using ops::OpKind;

constexpr int64_t kVocabMultiple = 8;  // rows of a vocabulary part, for products at full speed

class Cutter {
 public:
  Cutter(const ModelGraph& model, int64_t ranks, int64_t rank)
      : ranks_(ranks), rank_(rank), config_(model.config), result_{model, {}, 1} {}

  TensorPart run() {
    if (ranks_ == 1) {
      for (UnitGraph& graph : result_.model.kinds) graph = model::without_boundaries(graph);
    } else {
      check_sizes();
      result_.kv_replicas = std::max<int64_t>(1, ranks_ / config_.num_kv_heads);
    }
    cut_parameters();
    if (ranks_ == 1) return std::move(result_);
    cut_dims();
    for (UnitGraph& graph : result_.model.kinds) {
      for (Node& node : graph.nodes) cut_attributes(node);
      lower_boundaries(graph);
    }
    return std::move(result_);
  }

 private:
  void check_sizes() const {
    const auto demand = [&](bool fits, const std::string& remedy) {
      if (!fits) throw ConfigError("tensor_parallel_size", std::to_string(ranks_), remedy);
    };
    demand(config_.num_heads % ranks_ == 0,
           fmt::format("the {} attention heads must be a multiple of it", config_.num_heads));
    demand(config_.num_kv_heads % ranks_ == 0 || ranks_ % config_.num_kv_heads == 0,
           fmt::format("it must divide the {} key and value heads, or be a multiple of them",
                       config_.num_kv_heads));
    demand(config_.intermediate_size % ranks_ == 0,
           fmt::format("intermediate_size {} must be a multiple of it", config_.intermediate_size));
    demand(!config_.output_bias && !config_.mlp_bias,
           "biases behind row-parallel products (attention_bias, mlp_bias of Llama) are not cut "
           "yet; choose 1");
  }

  int64_t vocab_rows() const {
    return round_up(ceil_div(config_.vocab_size, ranks_), kVocabMultiple);
  }
  int64_t first_vocab() const { return std::min(config_.vocab_size, rank_ * vocab_rows()); }

  void cut_dims() {
    Dims& dims = result_.model.dims;
    const int64_t kv = std::max<int64_t>(1, config_.num_kv_heads / ranks_);
    dims.tensor_ranks = ranks_;
    dims[Dim::heads] /= ranks_;
    dims[Dim::q] /= ranks_;
    dims[Dim::qkv] = dims[Dim::q] + 2 * kv * config_.head_dim;
    dims[Dim::ffn] /= ranks_;
    dims[Dim::gate_up] /= ranks_;
    dims[Dim::vocab] = vocab_rows();
  }

  void cut_attributes(Node& node) const {
    node.attributes.heads /= static_cast<int32_t>(ranks_);
    node.attributes.kv_heads =
        std::max(1, node.attributes.kv_heads / static_cast<int32_t>(ranks_));
    node.attributes.first_vocab = first_vocab();
    node.attributes.vocab_padding =
        vocab_rows() - std::min(vocab_rows(), config_.vocab_size - first_vocab());
  }

  /// merge = gather, then combine.
  static void lower_boundaries(UnitGraph& graph) {
    std::vector<Node> nodes;
    for (Node& node : graph.nodes) {
      if (node.kind != NodeKind::merge) {
        nodes.push_back(std::move(node));
        continue;
      }
      model::Value parts = graph.values[static_cast<size_t>(node.args[1].id)];
      parts.name += ".parts";
      parts.rows = Dim::gathered;
      const Ref gathered = model::value_ref(static_cast<int>(graph.values.size()));
      graph.values.push_back(std::move(parts));
      Node combine = node;
      node.kind = NodeKind::gather;
      combine.kind = NodeKind::op;
      combine.op = OpKind::xent_combine;
      combine.args = {node.args[0], gathered, model::batch_ref(ops::BatchField::targets)};
      node.args[0] = gathered;
      nodes.push_back(std::move(node));
      nodes.push_back(std::move(combine));
    }
    graph.nodes = std::move(nodes);
  }

  void cut_parameters() {
    result_.tensors.resize(result_.model.parameters.size());
    for (const model::Unit& unit : result_.model.units) {
      const UnitGraph& graph = result_.model.kinds[static_cast<size_t>(unit.kind)];
      for (size_t s = 0; s < unit.parameters.size(); ++s) {
        for (int id : unit.parameters[s]) {
          const auto i = static_cast<size_t>(id);
          result_.tensors[i] = cut(result_.model.parameters[i], graph.slots[s]);
        }
      }
    }
  }

  LocalTensor cut(const Parameter& parameter, const Slot& slot) const {
    LocalTensor local{mesh::whole(parameter.shape), parameter.size(), SumGroup::none, true};
    if (ranks_ == 1) return local;
    switch (parameter.split) {
      case Split::replicated:
        local.sum = SumGroup::tensor;
        local.counted = rank_ == 0;
        return local;
      case Split::cols:
        local.box.extent[1] /= ranks_;
        local.box.start[1] = rank_ * local.box.extent[1];
        break;
      case Split::rows:
        if (slot.rows == Dim::vocab) {
          cut_vocab(local);
          return local;
        }
        cut_rows(parameter, slot, local);
        break;
    }
    local.stored = local.box.size();
    return local;
  }

  void cut_vocab(LocalTensor& local) const {
    local.box.start[0] = first_vocab();
    local.box.extent[0] = std::min(vocab_rows(), config_.vocab_size - first_vocab());
    local.stored = vocab_rows() * local.box.extent[1];
  }

  /// Heads stay whole; with fewer of them than ranks, neighbours hold the same.
  void cut_rows(const Parameter& parameter, const Slot& slot, LocalTensor& local) const {
    const bool by_heads = slot.rows == Dim::qkv || slot.cols == Dim::qkv;
    const int64_t rows = parameter.shape[0];
    const int64_t parts = by_heads ? std::min(ranks_, rows / config_.head_dim) : ranks_;
    const int64_t replicas = ranks_ / parts;
    local.box.extent[0] = div_exact(rows, parts);
    local.box.start[0] = rank_ / replicas * local.box.extent[0];
    if (replicas == 1) return;
    local.sum = SumGroup::kv_replicas;
    local.counted = rank_ % replicas == 0;
  }

  int64_t ranks_;
  int64_t rank_;
  const ModelConfig& config_;
  TensorPart result_;
};

}  // namespace

TensorPart tensor_part(const ModelGraph& model, int64_t tensor_ranks, int64_t rank) {
  return Cutter(model, tensor_ranks, rank).run();
}

}  // namespace trireme::plan
