#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "ops/signature.h"
#include "plan/memory.h"
#include "plan/phase.h"

namespace trireme::plan {

namespace {

using model::Adjoint;
using model::Dim;
using model::Element;
using model::LawRule;
using model::Node;
using model::Ref;
using model::UnitGraph;
using model::Value;

DType dtype_of(const Value& value, DType compute) {
  switch (value.element) {
    case Element::compute:
      return compute;
    case Element::f32:
      return DType::f32;
    case Element::f64:
      return DType::f64;
  }
  return compute;
}

/// Lays the values of one ordered node list into storages, frame and instructions.
class PhaseBuilder {
 public:
  PhaseBuilder(const PhaseRequest& request, const UnitGraph& graph,
               const std::vector<Value>& values, std::vector<Node> nodes,
               std::vector<bool> recomputed)
      : request_(request),
        graph_(graph),
        values_(values),
        nodes_(std::move(nodes)),
        recomputed_(std::move(recomputed)),
        external_(values.size()) {}

  /// Value `id` lives in a buffer that the schedule binds.
  void bind(int id, Bound bound, int64_t offset = 0) {
    if (id < 0) return;
    external_[static_cast<size_t>(id)].bound = bound;
    external_[static_cast<size_t>(id)].offset = offset;
  }

  Phase build(std::string name) {
    Phase phase;
    phase.name = std::move(name);
    phase.kind = request_.kind;
    phase.chunk = request_.chunk;
    find_loop(phase);
    find_uses();
    share_storage();
    phase.frame_bytes = lay_frame();
    for (size_t i = 0; i < nodes_.size(); ++i) phase.instructions.push_back(instruction(i));
    return phase;
  }

 private:
  struct External {
    Bound bound = Bound::none;
    int64_t offset = 0;
  };
  struct Use {
    size_t first = SIZE_MAX;
    size_t last = 0;
    bool in_loop = false;
    bool outside_loop = false;
    bool used() const { return first != SIZE_MAX; }
  };

  void find_loop(Phase& phase) {
    loop_begin_ = loop_end_ = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].chunked) continue;
      if (loop_end_ == 0) loop_begin_ = i;
      check(loop_end_ == 0 || loop_end_ == i, "chunked nodes of a phase are not adjacent");
      loop_end_ = i + 1;
    }
    phase.loop_begin = static_cast<int>(loop_begin_);
    phase.loop_end = static_cast<int>(loop_end_);
  }

  bool looped(size_t node) const { return node >= loop_begin_ && node < loop_end_; }

  void find_uses() {
    uses_.assign(values_.size(), {});
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Ref& ref : nodes_[i].args) {
        if (ref.kind != Ref::Kind::value) continue;
        Use& use = uses_[static_cast<size_t>(ref.id)];
        use.first = std::min(use.first, i);
        use.last = std::max(use.last, i);
        (looped(i) ? use.in_loop : use.outside_loop) = true;
      }
    }
    for (Use& use : uses_) {  // what crosses the edge of the loop lives through all of it
      if (!use.in_loop || !use.outside_loop) continue;
      use.first = std::min(use.first, loop_begin_);
      use.last = std::max(use.last, loop_end_ - 1);
    }
  }

  /// One chunk of rows is enough for a value that never leaves the loop.
  bool chunk_local(size_t id) const {
    return uses_[id].in_loop && !uses_[id].outside_loop && external_[id].bound == Bound::none &&
           values_[id].rows == Dim::tokens;
  }

  /// An output takes over the storage of an input that is read for the last time.
  void share_storage() {
    storage_.resize(values_.size());
    std::iota(storage_.begin(), storage_.end(), size_t{0});
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const auto operands = ops::signature(nodes_[i].op);
      for (size_t o = 0; o < nodes_[i].args.size(); ++o) {
        if (operands[o].access != ops::Access::write) continue;
        const int source = ops::may_alias(nodes_[i].op, static_cast<int>(o));
        if (source >= 0)
          try_share(i, nodes_[i].args[o], nodes_[i].args[static_cast<size_t>(source)]);
      }
    }
  }

  void try_share(size_t node, const Ref& out, const Ref& in) {
    if (out.kind != Ref::Kind::value || in.kind != Ref::Kind::value || out.id == in.id) return;
    const auto o = static_cast<size_t>(out.id);
    const size_t i = storage_[static_cast<size_t>(in.id)];
    const bool dies_here = uses_[static_cast<size_t>(in.id)].last == node && uses_[i].last <= node;
    if (uses_[o].first != node || !dies_here || storage_[o] != o) return;
    if (external_[i].bound != Bound::none ||
        external_[static_cast<size_t>(in.id)].bound != Bound::none)
      return;
    if (bytes(o) != bytes(i) || chunk_local(o) != chunk_local(i)) return;
    storage_[i] = storage_[static_cast<size_t>(in.id)] = o;
    for (size_t& s : storage_) s = s == i ? o : s;
    uses_[o].first = std::min(uses_[o].first, uses_[i].first);
  }

  int64_t bytes(size_t id) const {
    const Shape shape =
        shape_of(operand_of(id, false), request_.model->dims, request_.capacity, request_.chunk);
    return checked_mul(checked_mul(shape.rows, shape.cols),
                       size_of(dtype_of(values_[id], request_.compute)));
  }

  /// Packs frame storages and workspaces by the instructions during which they live.
  int64_t lay_frame() {
    std::vector<int64_t> sizes;
    std::vector<Use> lives;
    std::vector<size_t> owner(values_.size(), SIZE_MAX);
    for (size_t id = 0; id < values_.size(); ++id) {
      if (storage_[id] != id || !uses_[id].used() || external_[id].bound != Bound::none) continue;
      owner[id] = sizes.size();
      sizes.push_back(bytes(id));
      lives.push_back(uses_[id]);
    }
    const size_t num_values = sizes.size();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      sizes.push_back(workspace_of(i));
      lives.push_back({i, i, looped(i), !looped(i)});
    }
    Conflicts conflicts(sizes.size());
    for (size_t a = 0; a < sizes.size(); ++a) {
      for (size_t b = a + 1; b < sizes.size(); ++b) {
        if (lives[a].first <= lives[b].last && lives[b].first <= lives[a].last) conflicts.add(a, b);
      }
    }
    const Packing packing = pack(sizes, conflicts);
    frame_offset_.assign(values_.size(), 0);
    for (size_t id = 0; id < values_.size(); ++id) {
      if (owner[id] != SIZE_MAX) frame_offset_[id] = packing.offsets[owner[id]];
    }
    workspace_offset_.assign(packing.offsets.begin() + static_cast<int64_t>(num_values),
                             packing.offsets.end());
    return packing.total;
  }

  /// The call at its largest extent, without pointers, for the backend's sizing rules.
  int64_t workspace_of(size_t node) const {
    const Node& n = nodes_[node];
    ops::OpCall call;
    call.kind = n.op;
    call.dtype = request_.compute;
    call.law = n.law == LawRule::set ? ops::Law::set : ops::Law::add;
    call.attributes = n.attributes;
    call.attributes.longest = static_cast<int32_t>(request_.capacity.longest);
    call.num_args = static_cast<int32_t>(n.args.size());
    for (size_t a = 0; a < n.args.size(); ++a) {
      const Operand o = operand(node, n.args[a]);
      const Shape shape = shape_of(o, request_.model->dims, request_.capacity, request_.chunk);
      call.args[a] = {nullptr, o.dtype, shape.rows, shape.cols, shape.cols};
    }
    if (!request_.sizing->supports(n.op, request_.compute)) {
      throw ConfigError("device", std::string(name_of(request_.compute)),
                        fmt::format("this backend has no {} in that precision; choose another "
                                    "device or precision",
                                    ops::name_of(n.op)));
    }
    return request_.sizing->workspace_bytes(call);
  }

  /// The operand of a value, before its place in the frame is known.
  Operand operand_of(size_t id, bool in_loop) const {
    const Value& value = values_[id];
    const size_t storage = storage_.empty() ? id : storage_[id];
    const External& external = external_[storage];
    Operand o;
    o.bound = external.bound == Bound::none ? Bound::frame : external.bound;
    o.offset = external.offset;
    o.rows = value.rows;
    o.cols = value.cols;
    o.dtype = dtype_of(value, request_.compute);
    o.chunk = chunk_local(id);
    o.sliced = in_loop && !o.chunk && value.rows == Dim::tokens;
    o.name = value.name;
    return o;
  }

  Operand operand(size_t node, const Ref& ref) const {
    Operand o;
    switch (ref.kind) {
      case Ref::Kind::none:
        return o;
      case Ref::Kind::value:
        o = operand_of(static_cast<size_t>(ref.id), looped(node));
        if (o.bound == Bound::frame && !frame_offset_.empty()) {
          o.offset = frame_offset_[storage_[static_cast<size_t>(ref.id)]];
          o.bytes = bytes(static_cast<size_t>(ref.id));
        }
        return o;
      case Ref::Kind::slot:
      case Ref::Kind::slot_gradient: {
        const bool gradient = ref.kind == Ref::Kind::slot_gradient;
        const model::Slot& slot = graph_.slots[static_cast<size_t>(ref.id)];
        return {gradient ? Bound::gradient : Bound::weight,
                ref.id,
                0,
                0,
                slot.rows,
                slot.cols,
                gradient ? DType::f32 : request_.compute,
                false,
                false,
                (gradient ? "d." : "") + slot.name};
      }
      case Ref::Kind::batch:
        o = {Bound::batch, ref.id,       0,     0, Dim::one, Dim::tokens,
             DType::i32,   looped(node), false, ""};
        return o;
      case Ref::Kind::rope_table:
        return {Bound::rope_table, 0, 0, 0, Dim::one, Dim::one, DType::f32, false, false, "rope"};
      case Ref::Kind::loss_sums:
        return {Bound::loss_sums, 0, 0, 0, Dim::one, Dim::two, DType::f64, false, false, "sums"};
    }
    return o;
  }

  Instruction instruction(size_t node) const {
    const Node& n = nodes_[node];
    Instruction made;
    made.op = n.op;
    made.dtype = request_.compute;
    made.law = n.law;
    made.part = n.part;
    made.recomputed = recomputed_[node];
    made.attributes = n.attributes;
    for (const Ref& ref : n.args) made.args.push_back(operand(node, ref));
    made.workspace_bytes = workspace_of(node);
    made.workspace_offset = workspace_offset_[node];
    return made;
  }

  const PhaseRequest& request_;
  const UnitGraph& graph_;
  const std::vector<Value>& values_;
  std::vector<Node> nodes_;
  std::vector<bool> recomputed_;
  std::vector<External> external_;  // per value
  std::vector<Use> uses_;           // per storage after sharing
  std::vector<size_t> storage_;     // value -> value whose storage it uses
  std::vector<int64_t> frame_offset_;
  std::vector<int64_t> workspace_offset_;
  size_t loop_begin_ = 0;
  size_t loop_end_ = 0;
};

/// Backward with the forward nodes that rebuild what was dropped, each just before its first use.
class Recomputation {
 public:
  Recomputation(const UnitGraph& graph, const Adjoint& adjoint, model::Recompute level)
      : graph_(graph), adjoint_(adjoint), level_(level), available_(graph.values.size(), false) {
    producer_.assign(graph.values.size(), -1);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const auto operands = ops::signature(graph.nodes[i].op);
      for (size_t a = 0; a < graph.nodes[i].args.size(); ++a) {
        const Ref& ref = graph.nodes[i].args[a];
        if (ref.kind == Ref::Kind::value && operands[a].access != ops::Access::read) {
          producer_[static_cast<size_t>(ref.id)] = static_cast<int>(i);
        }
      }
    }
    for (const Node& node : adjoint.nodes) {
      need(node);
      nodes.push_back(node);
      recomputed.push_back(false);
    }
  }

  std::vector<Node> nodes;
  std::vector<bool> recomputed;
  std::vector<int> saved;  // values to keep from forward, ascending
  bool keeps_input = false;

 private:
  bool dropped(size_t id) const {
    return level_ != model::Recompute::none && graph_.values[id].level <= level_;
  }

  void need(const Node& node) {
    const auto operands = ops::signature(node.op);
    for (size_t a = 0; a < node.args.size(); ++a) {
      const Ref& ref = node.args[a];
      const bool forward_value =
          ref.kind == Ref::Kind::value && ref.id < static_cast<int>(graph_.values.size());
      if (forward_value && operands[a].access == ops::Access::read) {
        need_value(static_cast<size_t>(ref.id));
      }
    }
  }

  void need_value(size_t id) {
    if (available_[id]) return;
    available_[id] = true;
    if (static_cast<int>(id) == graph_.input) {
      keeps_input = true;
    } else if (!dropped(id)) {
      saved.push_back(static_cast<int>(id));
    } else {
      rebuild(producer_[id]);
    }
    std::sort(saved.begin(), saved.end());
  }

  void rebuild(int producer) {
    const Node& node = graph_.nodes[static_cast<size_t>(producer)];
    need(node);
    const auto operands = ops::signature(node.op);
    for (size_t a = 0; a < node.args.size(); ++a) {
      if (node.args[a].kind == Ref::Kind::value && operands[a].access != ops::Access::read) {
        available_[static_cast<size_t>(node.args[a].id)] = true;
      }
    }
    nodes.push_back(node);
    recomputed.push_back(true);
  }

  const UnitGraph& graph_;
  const Adjoint& adjoint_;
  model::Recompute level_;
  std::vector<bool> available_;
  std::vector<int> producer_;
};

class UnitBuilder {
 public:
  explicit UnitBuilder(const PhaseRequest& request)
      : request_(request),
        graph_(model::without_boundaries(request.model->kinds[static_cast<size_t>(request.kind)])),
        head_(graph_.output < 0) {}

  UnitPhases build() {
    UnitPhases phases;
    phases.evaluate = forward(head_ ? "evaluate loss" : "evaluate", {});
    if (!request_.backward) {
      if (!head_) phases.forward = forward("forward", {});
      return phases;
    }
    const Adjoint adjoint = derive_adjoint(graph_, {request_.trainable, request_.input_gradient});
    if (head_) {
      phases.backward = loss(adjoint);
      return phases;
    }
    const Recomputation rebuilt(graph_, adjoint, request_.level);
    std::map<int, int64_t> saved_at;
    for (int id : rebuilt.saved) {
      saved_at[id] = phases.saved_bytes;
      phases.saved_bytes += round_up(value_bytes(id), kAlignment);
    }
    phases.keeps_input = rebuilt.keeps_input;
    phases.forward = forward("forward", saved_at);
    phases.backward = backward(adjoint, rebuilt, saved_at);
    return phases;
  }

 private:
  int64_t value_bytes(int id) const {
    const Value& value = graph_.values[static_cast<size_t>(id)];
    Operand o;
    o.bound = Bound::saved;
    o.rows = value.rows;
    o.cols = value.cols;
    const Shape shape = shape_of(o, request_.model->dims, request_.capacity, request_.chunk);
    return shape.rows * shape.cols * size_of(dtype_of(value, request_.compute));
  }

  Phase forward(std::string name, const std::map<int, int64_t>& saved_at) const {
    PhaseBuilder builder(request_, graph_, graph_.values, graph_.nodes,
                         std::vector<bool>(graph_.nodes.size(), false));
    for (const auto& [id, offset] : saved_at) builder.bind(id, Bound::saved, offset);
    builder.bind(graph_.input, Bound::input);
    builder.bind(graph_.output, Bound::output);
    return builder.build(std::move(name));
  }

  Phase backward(const Adjoint& adjoint, const Recomputation& rebuilt,
                 const std::map<int, int64_t>& saved_at) const {
    PhaseBuilder builder(request_, graph_, adjoint.values, rebuilt.nodes, rebuilt.recomputed);
    for (const auto& [id, offset] : saved_at) builder.bind(id, Bound::saved, offset);
    return finish_backward(builder, adjoint, "backward");
  }

  Phase finish_backward(PhaseBuilder& builder, const Adjoint& adjoint, std::string name) const {
    builder.bind(graph_.input, Bound::input);
    const bool in_place =
        adjoint.input_gradient >= 0 && adjoint.input_gradient == adjoint.output_gradient;
    if (!in_place) builder.bind(adjoint.input_gradient, Bound::input_gradient);
    builder.bind(adjoint.output_gradient, Bound::output_gradient);
    Phase phase = builder.build(std::move(name));
    phase.gradient_in_place = in_place;
    return phase;
  }

  /// The head's forward, loss and backward as one phase: logits are never computed twice.
  Phase loss(const Adjoint& adjoint) const {
    std::vector<Node> nodes;
    const auto take = [&](const std::vector<Node>& from, bool chunked) {
      for (const Node& node : from) {
        if (node.chunked == chunked) nodes.push_back(node);
      }
    };
    take(graph_.nodes, false);
    take(graph_.nodes, true);
    take(adjoint.nodes, true);
    take(adjoint.nodes, false);
    std::vector<bool> recomputed(nodes.size(), false);
    PhaseBuilder builder(request_, graph_, adjoint.values, std::move(nodes), std::move(recomputed));
    return finish_backward(builder, adjoint, "loss");
  }

  const PhaseRequest& request_;
  UnitGraph graph_;
  bool head_;
};

}  // namespace

UnitPhases build_phases(const PhaseRequest& request) { return UnitBuilder(request).build(); }

}  // namespace trireme::plan
