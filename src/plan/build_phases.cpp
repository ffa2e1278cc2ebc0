#include <algorithm>
#include <iterator>
#include <utility>

#include "base/math.h"
#include "plan/memory.h"
#include "plan/phase_builder.h"
#include "plan/recomputation.h"

namespace trireme::plan {

namespace {

using model::Adjoint;
using model::Node;
using model::UnitGraph;
using model::Value;

class UnitBuilder {
 public:
  explicit UnitBuilder(const PhaseRequest& request)
      : request_(request),
        graph_(request.model->kinds[static_cast<size_t>(request.kind)]),
        head_(graph_.output < 0) {}

  UnitPhases build() {
    phases_.evaluate = forward(head_ ? "evaluate loss" : "evaluate");
    if (!request_.backward) {
      if (!head_) phases_.forward = forward("forward");
      return std::move(phases_);
    }
    const Adjoint adjoint = derive_adjoint(graph_, {request_.trainable, request_.input_gradient});
    if (head_) {
      phases_.backward = loss(adjoint);
    } else if (request_.split_backward) {
      in_two(adjoint);
    } else {
      const Rebuilt rebuilt = rebuild(graph_, adjoint.nodes, request_.level);
      keep(rebuilt);
      phases_.backward = backward(adjoint, rebuilt, "backward");
    }
    if (!head_) phases_.forward = forward("forward");
    return std::move(phases_);
  }

 private:
  /// Gives the values a place, one after the other.
  void reserve(const std::vector<int>& ids, const std::vector<Value>& values, Bound bound,
               int64_t& bytes) {
    for (int id : ids) {
      const bool known = std::any_of(kept_.begin(), kept_.end(),
                                     [&](const Placing& placing) { return placing.value == id; });
      if (known) continue;
      kept_.push_back({id, bound, bytes});
      bytes += round_up(value_bytes(values[static_cast<size_t>(id)]), kAlignment);
    }
  }

  void keep(const Rebuilt& rebuilt) {
    reserve(rebuilt.saved, graph_.values, Bound::saved, phases_.saved_bytes);
    phases_.keeps_input |= rebuilt.keeps_input;
  }

  void in_two(const Adjoint& adjoint) {
    const SplitBackward parts = split(adjoint, static_cast<int>(graph_.values.size()));
    const Rebuilt first = rebuild(graph_, parts.input, request_.level);
    const Rebuilt second = rebuild(graph_, parts.weight, request_.level, first.rebuilt);
    keep(first);
    keep(second);
    reserve(parts.handed_over, parts.values, Bound::deferred, phases_.deferred_bytes);
    reserve(second.reused, parts.values, Bound::deferred, phases_.deferred_bytes);
    Adjoint input = adjoint;
    input.values = parts.values;
    phases_.backward = backward(input, first, "input gradient");
    if (parts.weight.empty()) return;
    std::vector<Placing> bound = kept_;
    bound.push_back({graph_.input, Bound::input});
    phases_.weight_gradient = build_phase(
        request_, {&graph_, &parts.values, second.nodes, second.recomputed, std::move(bound)},
        "weight gradient");
  }

  int64_t value_bytes(const Value& value) const {
    Operand o;
    o.bound = Bound::saved;
    o.rows = value.rows;
    o.cols = value.cols;
    const Shape shape = shape_of(o, request_.model->dims, request_.capacity, request_.chunk);
    return shape.rows * shape.cols * size_of(dtype_of(value, request_.compute));
  }

  Phase forward(std::string name) const {
    std::vector<Placing> bound;
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(bound),
                 [](const Placing& placing) { return placing.bound == Bound::saved; });
    bound.push_back({graph_.input, Bound::input});
    bound.push_back({graph_.output, Bound::output});
    return build_phase(request_, {&graph_, &graph_.values, graph_.nodes, {}, std::move(bound)},
                       std::move(name));
  }

  Phase backward(const Adjoint& adjoint, const Rebuilt& rebuilt, std::string name) const {
    return finish_backward(adjoint, {&graph_, &adjoint.values, rebuilt.nodes, rebuilt.recomputed},
                           std::move(name));
  }

  Phase finish_backward(const Adjoint& adjoint, PhaseParts parts, std::string name) const {
    parts.bound = kept_;
    parts.bound.push_back({graph_.input, Bound::input});
    const bool in_place =
        adjoint.input_gradient >= 0 && adjoint.input_gradient == adjoint.output_gradient;
    if (!in_place) parts.bound.push_back({adjoint.input_gradient, Bound::input_gradient});
    parts.bound.push_back({adjoint.output_gradient, Bound::output_gradient});
    Phase phase = build_phase(request_, std::move(parts), std::move(name));
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
    return finish_backward(adjoint, {&graph_, &adjoint.values, std::move(nodes)}, "loss");
  }

  const PhaseRequest& request_;
  const UnitGraph& graph_;
  bool head_;
  std::vector<Placing> kept_;  // values that live from one phase to another
  UnitPhases phases_;
};

}  // namespace

UnitPhases build_phases(const PhaseRequest& request) { return UnitBuilder(request).build(); }

}  // namespace trireme::plan
