#include "plan/pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "ops/signature.h"

namespace trireme::plan {

namespace {

/// A call of a forward node, for the cost rules: shapes without addresses.
ops::OpCall shapes_of(const model::ModelGraph& model, const model::UnitGraph& graph,
                      const model::Node& node, int64_t tokens) {
  ops::OpCall call;
  call.kind = node.op;
  call.attributes = node.attributes;
  call.num_args = static_cast<int32_t>(node.args.size());
  for (size_t a = 0; a < node.args.size(); ++a) {
    const model::Ref& ref = node.args[a];
    model::Dim rows = model::Dim::one;
    model::Dim cols = model::Dim::tokens;
    if (ref.kind == model::Ref::Kind::value) {
      rows = graph.values[static_cast<size_t>(ref.id)].rows;
      cols = graph.values[static_cast<size_t>(ref.id)].cols;
    } else if (ref.kind == model::Ref::Kind::slot) {
      rows = graph.slots[static_cast<size_t>(ref.id)].rows;
      cols = graph.slots[static_cast<size_t>(ref.id)].cols;
    }
    call.args[a] = matrix(nullptr, DType::f32, model.dims.at(rows, tokens),
                          model.dims.at(cols, tokens));
  }
  return call;
}

}  // namespace

std::vector<int> Pipeline::own_units() const {
  std::vector<int> units;
  for (int c = 0; c < chunks(); ++c) {
    for (int u = this->units(c).begin; u < this->units(c).end; ++u) units.push_back(u);
  }
  return units;
}

std::vector<Slot> Pipeline::work(int micro_batches) const {
  return schedule_of({kind, stages, chunks(), micro_batches}, stage);
}

std::vector<double> unit_costs(const model::ModelGraph& model, const ops::Extent& extent) {
  std::vector<double> by_kind;
  const double pairs =
      0.5 * static_cast<double>(extent.tokens) * static_cast<double>(extent.longest);
  for (const model::UnitGraph& graph : model.kinds) {
    double cost = 0;
    for (const model::Node& node : graph.nodes) {
      if (node.kind != model::NodeKind::op) continue;
      cost += ops::flops(shapes_of(model, graph, node, extent.tokens), pairs);
    }
    by_kind.push_back(cost);
  }
  std::vector<double> costs;
  for (const model::Unit& unit : model.units) {
    costs.push_back(by_kind[static_cast<size_t>(unit.kind)]);
  }
  return costs;
}

Pipeline make_pipeline(const config::RunConfig& config, const model::ModelGraph& model,
                       const Mesh& mesh, const ops::Extent& capacity) {
  Pipeline pipeline;
  pipeline.kind = config.pipeline_schedule;
  pipeline.stages = static_cast<int>(mesh.layout.pp);
  pipeline.stage = static_cast<int>(mesh.at.pp);
  const int64_t virtual_stages = mesh.layout.pp * mesh.chunks;
  pipeline.ranges =
      config.pipeline_layers.empty()
          ? balanced_stages(unit_costs(model, capacity), virtual_stages)
          : stages_by_hand(config.pipeline_layers, model.num_units() - 2, virtual_stages);
  bool upstream = false;  // something trainable before this unit
  for (const model::Unit& unit : model.units) {
    pipeline.gradient_in.push_back(upstream);
    for (const auto& slot : unit.parameters) {
      for (int id : slot) upstream |= model.parameters[static_cast<size_t>(id)].trainable;
    }
  }
  return pipeline;
}

}  // namespace trireme::plan
