#include "model/graph.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace trireme::model {

Dims dims_of(const ModelConfig& config) {
  Dims dims;
  dims[Dim::one] = 1;
  dims[Dim::two] = 2;
  dims[Dim::three] = 3;
  dims[Dim::hidden] = config.hidden_size;
  dims[Dim::heads] = config.num_heads;
  dims[Dim::head_dim] = config.head_dim;
  dims[Dim::q] = config.q_size();
  dims[Dim::qkv] = config.qkv_size();
  dims[Dim::ffn] = config.intermediate_size;
  dims[Dim::gate_up] = 2 * config.intermediate_size;
  dims[Dim::vocab] = config.vocab_size;
  return dims;
}

int64_t Dims::at(Dim dim, int64_t tokens) const {
  switch (dim) {
    case Dim::tokens:
      return tokens;
    case Dim::sequence:
      return tokens / tensor_ranks;
    case Dim::gathered:
      return tokens * tensor_ranks;
    default:
      return (*this)[dim];
  }
}

std::span<const ops::Operand> operands_of(const Node& node) {
  static constexpr std::array<ops::Operand, 2> kBoundary = {
      {{"out", ops::Access::write}, {"in", ops::Access::read}}};
  if (node.kind == NodeKind::op) return ops::signature(node.op);
  return kBoundary;
}

int64_t Parameter::size() const {
  int64_t product = 1;
  for (int64_t extent : shape) product = checked_mul(product, extent);
  return product;
}

int64_t ModelGraph::num_parameters() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters) total += parameter.size();
  return total;
}

namespace {

constexpr size_t kMaxSlots = 64;  // programs keep a bit for each

void validate_nodes(const UnitGraph& graph) {
  check(graph.slots.size() <= kMaxSlots, "{}: {} slots", graph.name, graph.slots.size());
  std::vector<bool> written(graph.values.size(), false);
  if (graph.input >= 0) written[static_cast<size_t>(graph.input)] = true;
  for (const Node& node : graph.nodes) {
    const auto operands = operands_of(node);
    check(node.args.size() == operands.size(), "{}: a node has {} operands", graph.name,
          node.args.size());
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Ref& ref = node.args[i];
      if (ref.kind != Ref::Kind::value) continue;
      if (operands[i].access != ops::Access::read) {
        written[static_cast<size_t>(ref.id)] = true;
      } else {
        check(written[static_cast<size_t>(ref.id)], "{}: {} is read before it is written",
              graph.name, graph.values[static_cast<size_t>(ref.id)].name);
      }
    }
  }
  check(graph.output < 0 || written[static_cast<size_t>(graph.output)], "{}: no output",
        graph.name);
}

}  // namespace

void ModelGraph::validate() const {
  for (const UnitGraph& graph_of_kind : kinds) validate_nodes(graph_of_kind);
  for (const Unit& unit : units) {
    const UnitGraph& kind_graph = kinds[static_cast<size_t>(unit.kind)];
    check(unit.parameters.size() == kind_graph.slots.size(), "{}: {} slots bound, {} needed",
          unit.name, unit.parameters.size(), kind_graph.slots.size());
    for (size_t s = 0; s < unit.parameters.size(); ++s) {
      const Slot& slot = kind_graph.slots[s];
      int64_t size = 0;
      for (int id : unit.parameters[s]) {
        const Parameter& parameter = parameters[static_cast<size_t>(id)];
        size += parameter.size();
        const Parameter& first = parameters[static_cast<size_t>(unit.parameters[s][0])];
        if (parameter.trainable != first.trainable) {
          throw ConfigError(
              "trainable", parameter.name,
              fmt::format("{} is computed in one product with it; freeze or train both",
                          first.name));
        }
      }
      check(size == dims[slot.rows] * dims[slot.cols], "{}.{}: {} elements bound, shape is {} x {}",
            unit.name, slot.name, size, dims[slot.rows], dims[slot.cols]);
    }
  }
}

}  // namespace trireme::model
