#include "plan/fuse.h"

#include <algorithm>

namespace trireme::plan {

namespace {

using model::LawRule;
using model::Node;
using model::NodeKind;
using model::Part;
using model::Ref;
using ops::OpKind;

bool is(const Node& node, OpKind op) { return node.kind == NodeKind::op && node.op == op; }

bool touches(const Node& node, const Ref& ref) {
  return ref.kind != Ref::Kind::none &&
         std::find(node.args.begin(), node.args.end(), ref) != node.args.end();
}

bool writes(const Node& node, const Ref& ref) {
  if (ref.kind == Ref::Kind::none) return false;
  const auto operands = model::operands_of(node);
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (node.args[i] == ref && operands[i].access != ops::Access::read) return true;
  }
  return false;
}

class Fuser {
 public:
  Fuser(std::vector<Node>& nodes, std::vector<bool>& recomputed, const std::vector<bool>& kept)
      : nodes_(nodes), recomputed_(recomputed), kept_(kept) {}

  void run() {
    for (size_t i = 0; i + 1 < nodes_.size(); ++i) {
      fuse_residual(i);
      fuse_loss(i);
      fuse_activation(i);
      fuse_norm(i);
    }
  }

 private:
  bool leaves(const Ref& value) const { return kept_[static_cast<size_t>(value.id)]; }

  std::vector<size_t> users(const Ref& value) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (touches(nodes_[i], value)) found.push_back(i);
    }
    return found;
  }

  void fuse_residual(size_t i) {
    if (!is(nodes_[i], OpKind::linear) || !is(nodes_[i + 1], OpKind::add)) return;
    const Node& linear = nodes_[i];
    const Node& sum = nodes_[i + 1];
    const Ref product = linear.args[0];
    const Ref other = sum.args[1] == product ? sum.args[2] : sum.args[1];
    const bool adds_once = sum.law == LawRule::set && touches(sum, product) && other != product &&
                           other.kind == Ref::Kind::value && sum.args[0] != product;
    const bool has_residual = linear.args[4].kind != Ref::Kind::none;
    if (!adds_once || has_residual || leaves(product) || linear.chunked != sum.chunked ||
        users(product).size() != 2) {
      return;
    }
    Node fused = nodes_[i];
    fused.args[0] = sum.args[0];
    fused.args[4] = other;
    nodes_[i] = std::move(fused);
    erase(i + 1);
  }

  void fuse_loss(size_t i) {
    if (!is(nodes_[i], OpKind::xent_stats)) return;
    const Ref stats = nodes_[i].args[0];
    const Ref logits = nodes_[i].args[2];
    for (size_t j = i + 1; j < nodes_.size(); ++j) {
      const Node& node = nodes_[j];
      if (is(node, OpKind::xent_grad) && node.args[1] == logits && node.args[2] == stats) {
        if (node.chunked != nodes_[i].chunked) return;
        nodes_[i].args[1] = node.args[0];
        erase(j);
        return;
      }
      if (touches(node, logits) || writes(node, stats)) return;
    }
  }

  /// Whether node `i` may run after node `last` as well as in its place.
  bool can_follow(size_t i, size_t last) const {
    if (nodes_[i].part != Part::weight_gradient) return false;
    for (size_t between = i + 1; between <= last; ++between) {
      for (const Ref& ref : nodes_[i].args) {
        const bool overtakes = writes(nodes_[i], ref) && touches(nodes_[between], ref);
        if (overtakes || writes(nodes_[between], ref)) return false;
      }
    }
    return true;
  }

  void fuse_activation(size_t i) {
    if (!is(nodes_[i], OpKind::swiglu) || !recomputed_[i]) return;
    const Ref result = nodes_[i].args[0];
    const Ref operand = nodes_[i].args[1];
    size_t gradient = i + 1;
    while (gradient < nodes_.size() && !(is(nodes_[gradient], OpKind::swiglu_input_grad) &&
                                         nodes_[gradient].args[3] == operand)) {
      ++gradient;
    }
    if (gradient == nodes_.size()) return;
    std::vector<size_t> moved;
    for (const size_t user : users(result)) {
      if (user == i || user > gradient) continue;
      if (user < i || !can_follow(user, gradient)) return;
      moved.push_back(user);
    }
    nodes_[gradient].args[1] = result;
    // From the last to the first, so that they keep their order behind the gradient.
    for (auto user = moved.rbegin(); user != moved.rend(); ++user) {
      move_behind(nodes_, *user, gradient);
      move_behind(recomputed_, *user, gradient);
      --gradient;
    }
    erase(i);
  }

  /// Whether node `i` may run in the place of node `first`, before it.
  bool can_lead(size_t i, size_t first) const {
    for (size_t between = first; between < i; ++between) {
      for (const Ref& ref : nodes_[i].args) {
        const bool overtaken = writes(nodes_[i], ref) && touches(nodes_[between], ref);
        if (overtaken || writes(nodes_[between], ref)) return false;
      }
    }
    return true;
  }

  void fuse_norm(size_t i) {
    if (!is(nodes_[i], OpKind::rms_norm_input_grad)) return;
    const std::vector<Ref> a = nodes_[i].args;  // dx, dy, x, gain, rstd
    size_t gain = i + 1;
    while (gain < nodes_.size() &&
           !(is(nodes_[gain], OpKind::rms_norm_weight_grad) && nodes_[gain].args[1] == a[1] &&
             nodes_[gain].args[2] == a[2] && nodes_[gain].args[3] == a[4])) {
      ++gain;
    }
    if (gain == nodes_.size() || nodes_[gain].chunked != nodes_[i].chunked || !can_lead(gain, i)) {
      return;
    }
    const Ref before = nodes_[i].law == LawRule::add ? a[0] : Ref{};
    Node& fused = nodes_[i];
    fused.op = OpKind::rms_norm_grad;
    fused.law = nodes_[gain].law;
    fused.args = {nodes_[gain].args[0], a[0], a[1], a[2], a[3], a[4], before};
    erase(gain);
  }

  template <typename Values>
  static void move_behind(Values& values, size_t from, size_t last) {
    const auto at = values.begin() + static_cast<ptrdiff_t>(from);
    std::rotate(at, at + 1, values.begin() + static_cast<ptrdiff_t>(last) + 1);
  }

  void erase(size_t i) {
    nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(i));
    recomputed_.erase(recomputed_.begin() + static_cast<ptrdiff_t>(i));
  }

  std::vector<Node>& nodes_;
  std::vector<bool>& recomputed_;
  const std::vector<bool>& kept_;
};

}  // namespace

void fuse(std::vector<Node>& nodes, std::vector<bool>& recomputed, const std::vector<bool>& kept) {
  Fuser(nodes, recomputed, kept).run();
}

}  // namespace trireme::plan
