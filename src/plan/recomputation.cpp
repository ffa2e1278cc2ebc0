#include "plan/recomputation.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "model/graph_builder.h"

namespace trireme::plan {

namespace {

using model::Node;
using model::Ref;
using model::UnitGraph;
using model::Value;

bool writes(const Node& node, size_t argument) {
  return operands_of(node)[argument].access != ops::Access::read;
}

class Rebuilding {
 public:
  Rebuilding(const UnitGraph& graph, model::Recompute level, const std::vector<int>& available)
      : graph_(graph), level_(level), handed_(graph.values.size(), false), known_(handed_) {
    for (int id : available) handed_[static_cast<size_t>(id)] = true;
    producer_.assign(graph.values.size(), -1);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for_each_value(graph.nodes[i], true, [&](size_t id) { producer_[id] = static_cast<int>(i); });
    }
  }

  Rebuilt run(const std::vector<Node>& backward) {
    for (const Node& node : backward) add(node, false);
    for (auto* list : {&result_.saved, &result_.reused, &result_.rebuilt}) {
      std::sort(list->begin(), list->end());
    }
    return std::move(result_);
  }

 private:
  /// Forward values that a node reads, or writes.
  template <typename Visit>
  void for_each_value(const Node& node, bool written, const Visit& visit) const {
    for (size_t a = 0; a < node.args.size(); ++a) {
      const Ref& ref = node.args[a];
      if (ref.kind != Ref::Kind::value || ref.id >= static_cast<int>(graph_.values.size()))
        continue;
      if (writes(node, a) == written) visit(static_cast<size_t>(ref.id));
    }
  }

  bool dropped(size_t id) const {
    const Value& value = graph_.values[id];
    return value.gathered_again || (level_ != model::Recompute::none && value.level <= level_);
  }

  void add(const Node& node, bool recomputed) {
    for_each_value(node, false, [&](size_t id) { need(id); });
    if (recomputed) {
      for_each_value(node, true, [&](size_t id) {
        known_[id] = true;
        if (!graph_.values[id].gathered_again) result_.rebuilt.push_back(static_cast<int>(id));
      });
    }
    result_.nodes.push_back(node);
    result_.recomputed.push_back(recomputed);
  }

  void need(size_t id) {
    if (known_[id]) return;
    known_[id] = true;
    if (static_cast<int>(id) == graph_.input) {
      result_.keeps_input = true;
    } else if (handed_[id]) {
      result_.reused.push_back(static_cast<int>(id));
    } else if (!dropped(id)) {
      result_.saved.push_back(static_cast<int>(id));
    } else {
      add(graph_.nodes[static_cast<size_t>(producer_[id])], true);
    }
  }

  const UnitGraph& graph_;
  model::Recompute level_;
  std::vector<bool> handed_;
  std::vector<bool> known_;  // can be read from here on
  std::vector<int> producer_;
  Rebuilt result_;
};

/// Whether a node after `position` writes the value.
bool written_later(const std::vector<Node>& nodes, size_t position, const Ref& value) {
  for (size_t i = position + 1; i < nodes.size(); ++i) {
    for (size_t a = 0; a < nodes[i].args.size(); ++a) {
      if (nodes[i].args[a] == value && writes(nodes[i], a)) return true;
    }
  }
  return false;
}

}  // namespace

Rebuilt rebuild(const UnitGraph& graph, const std::vector<Node>& backward, model::Recompute level,
                const std::vector<int>& available) {
  return Rebuilding(graph, level, available).run(backward);
}

namespace {

class Splitting {
 public:
  Splitting(const model::Adjoint& adjoint, int num_forward_values)
      : adjoint_(adjoint), num_forward_values_(num_forward_values) {
    parts_.values = adjoint.values;
  }

  SplitBackward run() {
    for (size_t i = 0; i < adjoint_.nodes.size(); ++i) {
      Node node = adjoint_.nodes[i];
      if (node.part != model::Part::weight_gradient) {
        parts_.input.push_back(std::move(node));
        continue;
      }
      for (size_t a = 0; a < node.args.size(); ++a) {
        Ref& ref = node.args[a];
        if (ref.kind == Ref::Kind::value && ref.id >= num_forward_values_) hand_over(ref, i);
      }
      parts_.weight.push_back(std::move(node));
    }
    std::sort(parts_.handed_over.begin(), parts_.handed_over.end());
    return std::move(parts_);
  }

 private:
  /// A gradient that is overwritten before the weight gradients run is copied for them.
  void hand_over(Ref& gradient, size_t position) {
    const bool passes = gradient.id == adjoint_.output_gradient;
    if (passes || written_later(adjoint_.nodes, position, gradient)) {
      gradient = copy_of(gradient, position);
    }
    auto& list = parts_.handed_over;
    if (std::find(list.begin(), list.end(), gradient.id) == list.end()) list.push_back(gradient.id);
  }

  Ref copy_of(const Ref& gradient, size_t position) {
    Copy& copy = copies_[gradient.id];
    if (copy.id >= 0 && !written_between(copy.position, position, gradient)) {
      return model::value_ref(copy.id);
    }
    copy = {static_cast<int>(parts_.values.size()), position};
    Value value = parts_.values[static_cast<size_t>(gradient.id)];
    value.name += ".kept";
    parts_.values.push_back(std::move(value));
    Node& added = parts_.input.emplace_back();
    added.op = ops::OpKind::add;
    added.part = model::Part::input_gradient;
    added.args = {model::value_ref(copy.id), gradient, Ref{}};
    return added.args[0];
  }

  bool written_between(size_t begin, size_t end, const Ref& value) const {
    const std::vector<Node> between(adjoint_.nodes.begin() + static_cast<int64_t>(begin),
                                    adjoint_.nodes.begin() + static_cast<int64_t>(end));
    return written_later(between, 0, value);
  }

  struct Copy {
    int id = -1;
    size_t position = 0;  // the node that needed it first
  };

  const model::Adjoint& adjoint_;
  int num_forward_values_;
  std::map<int, Copy> copies_;  // by gradient
  SplitBackward parts_;
};

}  // namespace

SplitBackward split(const model::Adjoint& adjoint, int num_forward_values) {
  return Splitting(adjoint, num_forward_values).run();
}

std::vector<model::Recompute> recompute_levels(const config::RunConfig& config,
                                               int64_t num_blocks) {
  std::vector<model::Recompute> levels(static_cast<size_t>(num_blocks), model::Recompute::none);
  if (config.recompute.empty()) {
    if (config.gradient_checkpointing)
      std::fill(levels.begin(), levels.end(), model::Recompute::block);
    return levels;
  }
  int64_t at = 0;
  for (const config::RecomputeSpan& span : config.recompute) {
    const int64_t count = span.blocks < 0 ? num_blocks - at : span.blocks;
    if (at + count > num_blocks) {
      throw ConfigError("recompute", std::to_string(at + count) + " blocks",
                        fmt::format("the model has {} blocks; name at most that many", num_blocks));
    }
    std::fill_n(levels.begin() + at, count, span.level);
    at += count;
  }
  return levels;
}

}  // namespace trireme::plan
