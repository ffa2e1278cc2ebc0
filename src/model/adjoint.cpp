#include "model/adjoint.h"

#include <algorithm>

#include "base/error.h"
#include "model/graph_builder.h"

namespace trireme::model {

namespace {

using ops::BatchField;
using ops::OpKind;

class Derivation {
 public:
  Derivation(const UnitGraph& graph, const AdjointRequest& request)
      : graph_(graph), request_(request) {
    result_.values = graph.values;
    gradient_.assign(graph.values.size(), -1);
    find_active();
  }

  Adjoint run() {
    if (graph_.output >= 0 && active_[static_cast<size_t>(graph_.output)]) {
      result_.output_gradient = new_gradient(graph_.output);
      gradient_[static_cast<size_t>(graph_.output)] = result_.output_gradient;
    }
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      position_ = i;
      differentiate(graph_.nodes[i]);
    }
    if (request_.input_gradient) {
      result_.input_gradient = gradient_[static_cast<size_t>(graph_.input)];
      check(result_.input_gradient >= 0, "{}: the input has no gradient", graph_.name);
    }
    return std::move(result_);
  }

 private:
  /// A value is active when something trainable lies upstream of it.
  void find_active() {
    active_.assign(graph_.values.size(), false);
    if (graph_.input >= 0 && request_.input_gradient) {
      active_[static_cast<size_t>(graph_.input)] = true;
    }
    for (const Node& node : graph_.nodes) {
      bool active = false;
      for (const Ref& ref : node.args) active = active || needs_gradient(ref);
      if (!active) continue;
      for (const Ref& ref : outputs(node)) active_[static_cast<size_t>(ref.id)] = true;
    }
  }

  static std::vector<Ref> outputs(const Node& node) {
    std::vector<Ref> found;
    const size_t count = node.op == OpKind::rms_norm || node.op == OpKind::attention ? 2 : 1;
    for (size_t i = 0; i < count; ++i) {
      if (node.args[i].kind == Ref::Kind::value) found.push_back(node.args[i]);
    }
    return found;
  }

  bool needs_gradient(const Ref& ref) const {
    if (ref.kind == Ref::Kind::value) return active_[static_cast<size_t>(ref.id)];
    if (ref.kind == Ref::Kind::slot) return request_.trainable[static_cast<size_t>(ref.id)];
    return false;
  }

  int new_gradient(int of) {
    Value value = graph_.values[static_cast<size_t>(of)];
    value.name = "d." + value.name;
    value.level = Recompute::block;
    // Gradients of activations travel in the compute dtype, whatever the statistics do.
    value.element = Element::compute;
    result_.values.push_back(std::move(value));
    return static_cast<int>(result_.values.size()) - 1;
  }

  Node& emit(OpKind op, const Node& origin, std::vector<Ref> args, Part part) {
    Node& node = result_.nodes.emplace_back();
    node.op = op;
    node.args = std::move(args);
    node.part = part;
    node.chunked = origin.chunked;
    node.attributes = origin.attributes;
    return node;
  }

  /// Whether a value other than `of` whose gradient lives in `storage` still waits for its
  /// producer.
  bool read_later(int storage, int of) const {
    for (size_t i = 0; i <= position_; ++i) {
      for (const Ref& ref : outputs(graph_.nodes[i])) {
        if (ref.id != of && gradient_[static_cast<size_t>(ref.id)] == storage) return true;
      }
    }
    return graph_.input >= 0 && graph_.input != of &&
           gradient_[static_cast<size_t>(graph_.input)] == storage;
  }

  /// The gradient of `of`, ready to be added to in place.
  int writable_gradient(int of, const Node& origin) {
    int& storage = gradient_[static_cast<size_t>(of)];
    if (read_later(storage, of)) {
      const int copy = new_gradient(of);
      emit(OpKind::add, origin, {value_ref(copy), value_ref(storage), Ref{}}, Part::input_gradient);
      storage = copy;
    }
    return storage;
  }

  /// Contribution by an operation whose output obeys the write law; args[0] is filled in here.
  void contribute(const Ref& to, OpKind op, const Node& origin, std::vector<Ref> args) {
    if (to.kind != Ref::Kind::value || !active_[static_cast<size_t>(to.id)]) return;
    int& storage = gradient_[static_cast<size_t>(to.id)];
    const bool first = storage < 0;
    const int target = first ? new_gradient(to.id) : writable_gradient(to.id, origin);
    args[0] = value_ref(target);
    emit(op, origin, std::move(args), Part::input_gradient).law =
        first ? LawRule::set : LawRule::add;
    gradient_[static_cast<size_t>(to.id)] = target;
  }

  /// Contribution by an operation that only overwrites.
  void contribute_set(const Ref& to, OpKind op, const Node& origin, std::vector<Ref> args) {
    if (to.kind != Ref::Kind::value || !active_[static_cast<size_t>(to.id)]) return;
    const int fresh = new_gradient(to.id);
    args[0] = value_ref(fresh);
    emit(op, origin, std::move(args), Part::input_gradient);
    contribute_same(to, fresh, origin);
  }

  /// The gradient of `to` is, or grows by, the value `gradient`.
  void contribute_same(const Ref& to, int gradient, const Node& origin) {
    if (to.kind != Ref::Kind::value || !active_[static_cast<size_t>(to.id)]) return;
    if (gradient_[static_cast<size_t>(to.id)] < 0) {
      gradient_[static_cast<size_t>(to.id)] = gradient;
      return;
    }
    const int target = writable_gradient(to.id, origin);
    emit(OpKind::add, origin, {value_ref(target), value_ref(gradient), Ref{}}, Part::input_gradient)
        .law = LawRule::add;
  }

  void parameter(const Ref& slot, OpKind op, const Node& origin, std::vector<Ref> args) {
    if (slot.kind != Ref::Kind::slot || !needs_gradient(slot)) return;
    args[0] = slot_gradient_ref(slot.id);
    emit(op, origin, std::move(args), Part::weight_gradient).law = LawRule::gradient;
  }

  void differentiate(const Node& node) {
    if (node.kind != NodeKind::op) {
      boundary(node);
      return;
    }
    if (node.op == OpKind::xent_stats) return;
    if (node.op == OpKind::xent_loss) {
      loss(node);
      return;
    }
    const int g = gradient_[static_cast<size_t>(node.args[0].id)];
    if (g < 0) return;
    apply_rule(node, value_ref(g));
  }

  void boundary(const Node& node) {
    const int g = gradient_[static_cast<size_t>(node.args[0].id)];
    if (g < 0 || !needs_gradient(node.args[1])) return;
    const int fresh = new_gradient(node.args[1].id);
    Node& added = result_.nodes.emplace_back();
    added.kind = node.kind == NodeKind::enter ? NodeKind::leave : NodeKind::enter;
    added.part = Part::input_gradient;
    added.args = {value_ref(fresh), value_ref(g)};
    contribute_same(node.args[1], fresh, node);
  }

  const Node& producer(const Ref& ref) const {
    for (const Node& node : graph_.nodes) {
      for (const Ref& output : outputs(node)) {
        if (output == ref) return node;
      }
    }
    throw BugError(fmt::format("{}: nothing writes value {}", graph_.name, ref.id));
  }

  /// The upstream gradient of the loss sum is 1: xent_grad starts backward. Between this rank's
  /// statistics and those of the loss may lie a gather over ranks and the combination.
  void loss(const Node& node) {
    const Ref stats = node.args[1];
    const Node* origin = &producer(stats);
    while (origin->kind != NodeKind::op || origin->op == OpKind::xent_combine) {
      origin = &producer(origin->args[1]);
    }
    check(origin->op == OpKind::xent_stats, "{}: the loss has no statistics", graph_.name);
    const Ref logits = origin->args[2];
    contribute_set(logits, OpKind::xent_grad, *origin, {Ref{}, logits, stats, node.args[2]});
  }

  void apply_rule(const Node& node, const Ref& g) {
    const auto& a = node.args;
    const Ref none;
    switch (node.op) {
      case OpKind::embedding:
        parameter(a[1], OpKind::embedding_weight_grad, node,
                  {none, g, batch_ref(BatchField::ids), batch_ref(BatchField::order)});
        return;
      case OpKind::rms_norm:  // y, rstd, x, gain
        contribute(a[2], OpKind::rms_norm_input_grad, node, {none, g, a[2], a[3], a[1]});
        parameter(a[3], OpKind::rms_norm_weight_grad, node, {none, g, a[2], a[1]});
        return;
      case OpKind::qk_norm:  // y, qkv, gain
        contribute_set(a[1], OpKind::qk_norm_input_grad, node, {none, g, a[1], a[2]});
        parameter(a[2], OpKind::qk_norm_weight_grad, node, {none, g, a[1]});
        return;
      case OpKind::linear:  // y, x, weight, bias
        contribute(a[1], OpKind::linear_input_grad, node, {none, g, a[2]});
        parameter(a[2], OpKind::linear_weight_grad, node, {none, g, a[1]});
        parameter(a[3], OpKind::linear_bias_grad, node, {none, g});
        return;
      case OpKind::rope:  // out, qkv, table, positions
        contribute_set(a[1], OpKind::rope_input_grad, node, {none, g, a[2], a[3]});
        return;
      case OpKind::attention:  // out, lse, qkv, cu_seqlens
        contribute_set(a[2], OpKind::attention_input_grad, node, {none, g, a[2], a[0], a[1], a[3]});
        return;
      case OpKind::swiglu:  // out, gate_up
        contribute_set(a[1], OpKind::swiglu_input_grad, node, {none, none, g, a[1]});
        return;
      case OpKind::add:  // out, a, b
        contribute_same(a[1], g.id, node);
        contribute_same(a[2], g.id, node);
        return;
      default:
        check(false, "{} has no adjoint rule", ops::name_of(node.op));
    }
  }

  const UnitGraph& graph_;
  const AdjointRequest& request_;
  Adjoint result_;
  std::vector<bool> active_;
  std::vector<int> gradient_;  // per forward value: the value that holds its gradient so far, or -1
  size_t position_ = 0;        // node being differentiated
};

}  // namespace

Adjoint derive_adjoint(const UnitGraph& graph, const AdjointRequest& request) {
  check(request.trainable.size() == graph.slots.size(), "{}: trainable flags", graph.name);
  return Derivation(graph, request).run();
}

UnitGraph without_boundaries(const UnitGraph& graph) {
  UnitGraph plain = graph;
  const auto alone = [](Dim dim) { return dim == Dim::sequence ? Dim::tokens : dim; };
  for (Value& value : plain.values) {
    value.rows = alone(value.rows);
    value.cols = alone(value.cols);
  }
  std::vector<int> alias(graph.values.size());
  for (size_t i = 0; i < alias.size(); ++i) alias[i] = static_cast<int>(i);
  plain.nodes.clear();
  for (Node node : graph.nodes) {
    for (Ref& ref : node.args) {
      if (ref.kind == Ref::Kind::value) ref.id = alias[static_cast<size_t>(ref.id)];
    }
    if (node.kind == NodeKind::op) {
      plain.nodes.push_back(std::move(node));
    } else {
      const Ref& out = node.args[0];
      alias[static_cast<size_t>(out.id)] = node.args[1].id;
    }
  }
  if (plain.output >= 0) plain.output = alias[static_cast<size_t>(plain.output)];
  return plain;
}

}  // namespace trireme::model
