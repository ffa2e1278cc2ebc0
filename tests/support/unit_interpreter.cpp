#include "support/unit_interpreter.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "data/batch_builder.h"
#include "model/graph_builder.h"
#include "model/model_config.h"

namespace trireme::testing {

using model::Dim;
using model::LawRule;
using model::Node;
using model::Ref;
using ops::BatchField;
using ops::OpKind;

namespace {

/// One node with its operands looked up.
class NodeRun {
 public:
  NodeRun(const Node& node, const Tensor& rope_table, const BatchFields& batch,
          UnitTensors& tensors)
      : node_(node), rope_table_(rope_table), batch_(batch), tensors_(tensors) {}

  void run() {
    if (node_.kind != model::NodeKind::op) {
      put(0, in(1));
      return;
    }
    switch (node_.op) {
      case OpKind::embedding:
        return put(0, contract::embedding(in(1), ints(2), held(in(1).rows)));
      case OpKind::rms_norm: {
        const auto [y, rstd] = contract::rms_norm(in(2), in(3), node_.attributes.eps);
        put(0, y);
        return put(1, rstd);
      }
      case OpKind::qk_norm:
        return put(0, contract::qk_norm(in(1), in(2), heads(), node_.attributes.eps));
      case OpKind::linear:
        return put(0, contract::linear(in(1), in(2), present(3) ? in(3) : Tensor()));
      case OpKind::rope:
        return put(0, contract::rope(in(1), in(2), ints(3), heads()));
      case OpKind::attention: {
        const auto [out, lse] = contract::attention(
            in(2), ints(3), heads(), node_.attributes.window, node_.attributes.attention_scale);
        put(0, out);
        return put(1, lse);
      }
      case OpKind::swiglu:
        return put(0, contract::swiglu(in(1)));
      case OpKind::add:
        return put(0, present(2) ? contract::plus(in(1), in(2)) : in(1));
      case OpKind::xent_stats:
        return put(0, contract::xent_stats(in(2), ints(3), held(in(2).cols)));
      case OpKind::xent_combine:
        return put(0, contract::xent_combine(in(1), ints(2)));
      case OpKind::xent_loss:
        return put(0, contract::xent_loss(in(1), ints(2)));
      default:
        return gradient();
    }
  }

 private:
  void gradient() {
    switch (node_.op) {
      case OpKind::embedding_weight_grad:
        return put(0, contract::embedding_weight_grad(target(0).rows, in(1), ints(2),
                                                      held(target(0).rows)));
      case OpKind::rms_norm_input_grad:
        return put(0, contract::rms_norm_input_grad(in(1), in(2), in(3), in(4)));
      case OpKind::rms_norm_weight_grad:
        return put(0, contract::rms_norm_weight_grad(in(1), in(2), in(3)));
      case OpKind::qk_norm_input_grad:
        return put(
            0, contract::qk_norm_input_grad(in(1), in(2), in(3), heads(), node_.attributes.eps));
      case OpKind::qk_norm_weight_grad:
        return put(0, contract::qk_norm_weight_grad(in(1), in(2), heads(), node_.attributes.eps));
      case OpKind::linear_input_grad:
        return put(0, contract::linear_input_grad(in(1), in(2)));
      case OpKind::linear_weight_grad:
        return put(0, contract::linear_weight_grad(in(1), in(2)));
      case OpKind::linear_bias_grad:
        return put(0, contract::linear_bias_grad(in(1)));
      case OpKind::rope_input_grad:
        return put(0, contract::rope_input_grad(in(1), in(2), ints(3), heads()));
      case OpKind::attention_input_grad:
        return put(0, contract::attention_input_grad(in(1), in(2), ints(5), heads(),
                                                     node_.attributes.window,
                                                     node_.attributes.attention_scale));
      case OpKind::swiglu_input_grad:
        return put(0, contract::swiglu_input_grad(in(2), in(3)));
      case OpKind::xent_grad:
        return put(0, contract::xent_grad(in(1), in(2), ints(3), held(in(1).cols)));
      default:
        check(false, "the interpreter has no {}", ops::name_of(node_.op));
    }
  }

  const Ref& ref(size_t i) const { return node_.args[i]; }
  bool present(size_t i) const { return ref(i).kind != Ref::Kind::none; }

  Tensor& target(size_t i) {
    const auto id = static_cast<size_t>(ref(i).id);
    switch (ref(i).kind) {
      case Ref::Kind::value:
        return tensors_.values[id];
      case Ref::Kind::slot_gradient:
        return tensors_.slot_gradients[id];
      case Ref::Kind::loss_sums:
        return tensors_.loss_sums;
      default:
        check(false, "{} writes to operand {}", ops::name_of(node_.op), i);
        return tensors_.loss_sums;
    }
  }

  /// By the write law: what adds to a value that was never written stays NaN.
  void put(size_t i, Tensor result) {
    Tensor& to = target(i);
    check(to.rows == result.rows && to.cols == result.cols,
          "{} gives {} x {} where {} x {} is kept", ops::name_of(node_.op), result.rows,
          result.cols, to.rows, to.cols);
    to = i == 0 && node_.law != LawRule::set ? contract::plus(to, result) : std::move(result);
  }

  const Tensor& in(size_t i) const {
    const auto id = static_cast<size_t>(ref(i).id);
    switch (ref(i).kind) {
      case Ref::Kind::value:
        return tensors_.values[id];
      case Ref::Kind::slot:
        return tensors_.slots[id];
      case Ref::Kind::rope_table:
        return rope_table_;
      default:
        check(false, "{} reads operand {}", ops::name_of(node_.op), i);
        return rope_table_;
    }
  }

  const contract::Ints& ints(size_t i) const {
    check(ref(i).kind == Ref::Kind::batch, "operand {} is no batch field", i);
    switch (static_cast<BatchField>(ref(i).id)) {
      case BatchField::ids:
        return batch_.ids;
      case BatchField::targets:
        return batch_.targets;
      case BatchField::positions:
        return batch_.positions;
      case BatchField::cu_seqlens:
        return batch_.cu_seqlens;
      default:
        check(false, "the reference operations do not read field {}", ref(i).id);
        return batch_.ids;
    }
  }

  ops::HeldVocab held(int64_t extent) const { return node_.attributes.held_vocab(extent); }
  contract::Heads heads() const {
    return {node_.attributes.heads, node_.attributes.kv_heads, node_.attributes.head_dim};
  }

  const Node& node_;
  const Tensor& rope_table_;
  const BatchFields& batch_;
  UnitTensors& tensors_;
};

/// The tensors of a slot, one after the other, as one matrix.
Tensor slot_tensor(const model::ModelGraph& model, const model::Slot& slot,
                   const std::vector<int>& ids, const DoubleTensors& weights) {
  Tensor tensor(model.dims[slot.rows], model.dims[slot.cols]);
  auto out = tensor.values.begin();
  for (int id : ids) {
    const auto& part = weights.at(model.parameters[static_cast<size_t>(id)].name);
    out = std::copy(part.begin(), part.end(), out);
  }
  return tensor;
}

void add_slot_gradient(const model::ModelGraph& model, const std::vector<int>& ids,
                       const Tensor& gradient, DoubleTensors& gradients) {
  auto from = gradient.values.begin();
  for (int id : ids) {
    const model::Parameter& parameter = model.parameters[static_cast<size_t>(id)];
    auto& sum = gradients[parameter.name];
    sum.resize(static_cast<size_t>(parameter.size()));
    for (double& element : sum) element += *from++;
  }
}

}  // namespace

BatchFields batch_of(const data::Dataset& dataset, std::span<const int32_t> samples,
                     int64_t pad_multiple) {
  const ops::Extent extent = data::extent_of(dataset.lengths(), samples, pad_multiple);
  const ops::BatchLayout layout{extent};
  std::vector<int32_t> all(static_cast<size_t>(layout.total()));
  data::BatchBuilder(extent).build(dataset, samples, layout, pad_multiple, all.data());
  const auto field = [&](BatchField which) {
    const auto begin = all.begin() + layout.offset(which);
    return contract::Ints(begin, begin + ops::BatchLayout::size(which, extent));
  };
  return {field(BatchField::ids), field(BatchField::targets), field(BatchField::positions),
          field(BatchField::cu_seqlens)};
}

Tensor UnitInterpreter::empty(Dim rows, Dim cols, double value) const {
  const auto extent = [&](Dim dim) { return dims_.at(dim, batch_.tokens()); };
  return Tensor(extent(rows), extent(cols), value);
}

UnitTensors UnitInterpreter::tensors(const model::UnitGraph& graph,
                                     const std::vector<model::Value>& values) const {
  UnitTensors made;
  for (const model::Value& value : values) {
    made.values.push_back(empty(value.rows, value.cols, std::numeric_limits<double>::quiet_NaN()));
  }
  for (const model::Slot& slot : graph.slots) {
    made.slots.push_back(empty(slot.rows, slot.cols, 0));
    made.slot_gradients.push_back(made.slots.back());
  }
  return made;
}

void UnitInterpreter::run(const std::vector<Node>& nodes, UnitTensors& tensors) const {
  for (const Node& node : nodes) NodeRun(node, rope_table_, batch_, tensors).run();
}

Tensor rope_table_of(const model::ModelConfig& config, int64_t positions) {
  Tensor table(positions, config.head_dim);
  const std::vector<float> values = model::rope_table(config, positions);
  std::copy(values.begin(), values.end(), table.values.begin());
  return table;
}

void add_micro_batch(const model::ModelGraph& model, const DoubleTensors& weights,
                     const BatchFields& batch, bool gradients, LossSums& sums) {
  const int64_t longest = std::max<int64_t>(1, batch.tokens());
  const Tensor rope_table = rope_table_of(model.config, longest);
  const UnitInterpreter interpreter(model.dims, rope_table, batch);
  std::vector<UnitTensors> units;
  std::vector<model::Adjoint> adjoints;
  bool upstream = false;  // something trainable before this unit
  for (int u = 0; u < model.num_units(); ++u) {
    const model::UnitGraph& graph = model.graph(u);
    const auto& bound = model.units[static_cast<size_t>(u)].parameters;
    model::AdjointRequest request{{}, upstream};
    for (const auto& ids : bound) {
      request.trainable.push_back(model.parameters[static_cast<size_t>(ids[0])].trainable);
      upstream |= request.trainable.back();
    }
    adjoints.push_back(derive_adjoint(graph, request));
    units.push_back(interpreter.tensors(graph, adjoints.back().values));
    UnitTensors& now = units.back();
    for (size_t s = 0; s < bound.size(); ++s) {
      now.slots[s] = slot_tensor(model, graph.slots[s], bound[s], weights);
    }
    if (u > 0) {
      const auto& before = units[static_cast<size_t>(u) - 1];
      now.values[static_cast<size_t>(graph.input)] =
          before.values[static_cast<size_t>(model.graph(u - 1).output)];
    }
    interpreter.run(graph.nodes, now);
  }
  sums.loss += units.back().loss_sums.at(0);
  sums.tokens += units.back().loss_sums.at(1);
  for (int u = model.num_units() - 1; gradients && u >= 0; --u) {
    const model::Adjoint& adjoint = adjoints[static_cast<size_t>(u)];
    UnitTensors& now = units[static_cast<size_t>(u)];
    if (adjoint.nodes.empty()) break;
    if (adjoint.output_gradient >= 0) {
      const auto from = static_cast<size_t>(adjoints[static_cast<size_t>(u) + 1].input_gradient);
      now.values[static_cast<size_t>(adjoint.output_gradient)] =
          units[static_cast<size_t>(u) + 1].values[from];
    }
    interpreter.run(adjoint.nodes, now);
    const auto& bound = model.units[static_cast<size_t>(u)].parameters;
    for (size_t s = 0; s < bound.size(); ++s) {
      if (!model.parameters[static_cast<size_t>(bound[s][0])].trainable) continue;
      add_slot_gradient(model, bound[s], now.slot_gradients[s], sums.gradients);
    }
  }
}

}  // namespace trireme::testing
