#include "plan/work_costs.h"

#include "model/backward_needs.h"
#include "ops/signature.h"
#include "plan/recomputation.h"

namespace trireme::plan {

namespace {

using model::Dim;
using model::Node;
using model::Ref;

/// Adds up the operations of one unit's nodes.
class UnitCost {
 public:
  UnitCost(const model::Dims& dims, const ops::Extent& extent, const model::UnitGraph& graph,
           const std::vector<model::Value>& values)
      : dims_(dims), extent_(extent), graph_(graph), values_(values) {}

  /// What backward computes again is part of its first half.
  void add(const std::vector<Node>& nodes, bool backward) {
    for (const Node& node : nodes) {
      if (node.kind != model::NodeKind::op) continue;
      const bool forward = node.part == model::Part::forward && !backward;
      const bool weight = node.part == model::Part::weight_gradient;
      (forward  ? costs_.forward
       : weight ? costs_.weight_gradient
                : costs_.input_gradient) +=
          ops::flops(call_of(node), pairs(node.attributes.window));
    }
  }

  WorkCosts costs() const {
    if (graph_.output >= 0) return costs_;
    return {0, costs_.total(), 0};
  }

 private:
  double pairs(int64_t window) const {
    if (extent_.sequences == 0) return 0;
    const auto sequences = static_cast<double>(extent_.sequences);
    return sequences * ops::visible_pairs(static_cast<double>(extent_.tokens) / sequences, window);
  }

  /// Shapes without addresses.
  ops::OpCall call_of(const Node& node) const {
    ops::OpCall call;
    call.kind = node.op;
    call.attributes = node.attributes;
    for (size_t a = 0; a < node.args.size(); ++a) {
      const Ref& ref = node.args[a];
      const auto id = static_cast<size_t>(ref.id);
      if (ref.kind == Ref::Kind::value) {
        call.args[a] = shape(values_[id].rows, values_[id].cols);
      } else if (ref.kind == Ref::Kind::slot || ref.kind == Ref::Kind::slot_gradient) {
        call.args[a] = shape(graph_.slots[id].rows, graph_.slots[id].cols);
      } else {
        call.args[a] = shape(Dim::one, Dim::tokens);
      }
    }
    return call;
  }
  TensorView shape(Dim rows, Dim cols) const {
    return matrix(nullptr, DType::f32, dims_.at(rows, extent_.tokens),
                  dims_.at(cols, extent_.tokens));
  }

  const model::Dims& dims_;
  const ops::Extent& extent_;
  const model::UnitGraph& graph_;
  const std::vector<model::Value>& values_;
  WorkCosts costs_{0, 0, 0};
};

}  // namespace

std::vector<WorkCosts> work_costs(const model::ModelGraph& model, const ops::Extent& extent,
                                  const std::vector<model::Recompute>& levels) {
  std::vector<WorkCosts> costs;
  const std::vector<model::AdjointRequest> needs = model::backward_needs(model);
  for (int u = 0; u < model.num_units(); ++u) {
    const model::UnitGraph& graph = model.graph(u);
    // Nothing is left of an adjoint where nothing is trained so far.
    const model::Adjoint adjoint = model::derive_adjoint(graph, needs[static_cast<size_t>(u)]);
    UnitCost unit(model.dims, extent, graph, adjoint.values);
    unit.add(graph.nodes, false);
    if (graph.output < 0) {
      unit.add(adjoint.nodes, true);
    } else {
      const bool block = u >= 1 && u <= std::ssize(levels);
      const auto level = block ? levels[static_cast<size_t>(u) - 1] : model::Recompute::none;
      unit.add(rebuild(graph, adjoint.nodes, level).nodes, true);
    }
    costs.push_back(unit.costs());
  }
  return costs;
}

}  // namespace trireme::plan
