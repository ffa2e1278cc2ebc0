#include "model/graph_builder.h"

#include <cmath>
#include <utility>

namespace trireme::model {

using ops::BatchField;
using ops::OpKind;

GraphBuilder::GraphBuilder(std::string name, const ModelConfig& config) : config_(config) {
  graph_.name = std::move(name);
}

int GraphBuilder::slot(std::string name, Dim rows, Dim cols) {
  graph_.slots.push_back({std::move(name), rows, cols});
  return static_cast<int>(graph_.slots.size()) - 1;
}

int GraphBuilder::new_value(std::string name, Dim rows, Dim cols, Element element,
                            Recompute level) {
  graph_.values.push_back({std::move(name), rows, cols, element, level});
  return static_cast<int>(graph_.values.size()) - 1;
}

Node& GraphBuilder::node(OpKind op, std::vector<Ref> args) {
  Node& added = graph_.nodes.emplace_back();
  added.op = op;
  added.args = std::move(args);
  added.attributes.heads = static_cast<int32_t>(config_.num_heads);
  added.attributes.kv_heads = static_cast<int32_t>(config_.num_kv_heads);
  added.attributes.head_dim = static_cast<int32_t>(config_.head_dim);
  added.attributes.window = static_cast<int32_t>(config_.sliding_window);
  added.attributes.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  added.attributes.eps = config_.rms_norm_eps;
  return added;
}

int GraphBuilder::input() {
  graph_.input = new_value("x", Dim::sequence, Dim::hidden, Element::compute, Recompute::block);
  return graph_.input;
}

int GraphBuilder::embedding(int table_slot) {
  const int x = new_value("x", Dim::tokens, Dim::hidden, Element::compute, Recompute::block);
  node(OpKind::embedding, {value_ref(x), slot_ref(table_slot), batch_ref(BatchField::ids)});
  return x;
}

int GraphBuilder::rms_norm(int x, int gain_slot) {
  const std::string name = value(x).name + ".norm";
  const Dim rows = value(x).rows;
  const int y = new_value(name, rows, Dim::hidden, Element::compute, Recompute::norms);
  const int rstd = new_value(name + ".rstd", Dim::one, rows, Element::f32, Recompute::norms);
  node(OpKind::rms_norm, {value_ref(y), value_ref(rstd), value_ref(x), slot_ref(gain_slot)});
  return y;
}

int GraphBuilder::linear(std::string name, int x, int weight_slot, int bias_slot, Dim cols,
                         Recompute level) {
  const int y = new_value(std::move(name), value(x).rows, cols, Element::compute, level);
  node(OpKind::linear, {value_ref(y), value_ref(x), slot_ref(weight_slot),
                        bias_slot >= 0 ? slot_ref(bias_slot) : Ref{}, Ref{}});
  return y;
}

int GraphBuilder::qk_norm(int qkv, int gain_slot) {
  const int out = new_value("qkv.norm", Dim::tokens, Dim::qkv, Element::compute, Recompute::norms);
  node(OpKind::qk_norm, {value_ref(out), value_ref(qkv), slot_ref(gain_slot)});
  return out;
}

int GraphBuilder::rope(int qkv) {
  // As cheap to rebuild as what it is made from.
  const int out = new_value("qkv", Dim::tokens, Dim::qkv, Element::compute, value(qkv).level);
  node(OpKind::rope,
       {value_ref(out), value_ref(qkv), rope_table_ref(), batch_ref(BatchField::positions)});
  return out;
}

int GraphBuilder::attention(int qkv) {
  const int out =
      new_value("attention", Dim::tokens, Dim::q, Element::compute, Recompute::attention);
  const int lse =
      new_value("attention.lse", Dim::heads, Dim::tokens, Element::f32, Recompute::attention);
  node(OpKind::attention,
       {value_ref(out), value_ref(lse), value_ref(qkv), batch_ref(BatchField::cu_seqlens)});
  return out;
}

int GraphBuilder::swiglu(int gate_up) {
  const int out =
      new_value("activation", Dim::tokens, Dim::ffn, Element::compute, Recompute::activation);
  node(OpKind::swiglu, {value_ref(out), value_ref(gate_up)});
  return out;
}

int GraphBuilder::add(std::string name, int a, int b) {
  const int out =
      new_value(std::move(name), value(a).rows, value(a).cols, Element::compute, Recompute::block);
  node(OpKind::add, {value_ref(out), value_ref(a), value_ref(b)});
  return out;
}

int GraphBuilder::boundary(NodeKind kind, int x) {
  Value out_value = value(x);
  if (kind == NodeKind::enter) {
    out_value.name += ".entered";
    out_value.rows = Dim::tokens;
    out_value.gathered_again = true;
  } else if (kind == NodeKind::leave) {
    out_value.name += ".left";
    out_value.rows = Dim::sequence;
  } else {
    out_value.name += ".merged";
  }
  graph_.values.push_back(std::move(out_value));
  const int out = static_cast<int>(graph_.values.size()) - 1;
  Node& added = graph_.nodes.emplace_back();
  added.kind = kind;
  added.args = {value_ref(out), value_ref(x)};
  return out;
}

int GraphBuilder::enter(int x) { return boundary(NodeKind::enter, x); }
int GraphBuilder::leave(int x) { return boundary(NodeKind::leave, x); }

void GraphBuilder::loss(int x, int vocab_slot) {
  const int logits =
      new_value("logits", Dim::tokens, Dim::vocab, Element::compute, Recompute::norms);
  const int stats = new_value("stats", Dim::tokens, Dim::three, Element::f32, Recompute::norms);
  const size_t first = graph_.nodes.size();
  node(OpKind::linear, {value_ref(logits), value_ref(x), slot_ref(vocab_slot), Ref{}, Ref{}});
  node(OpKind::xent_stats,
       {value_ref(stats), Ref{}, value_ref(logits), batch_ref(BatchField::targets)});
  const int all = boundary(NodeKind::merge, stats);
  node(OpKind::xent_loss, {loss_sums_ref(), value_ref(all), batch_ref(BatchField::targets)}).law =
      LawRule::first_micro_batch;
  for (size_t i = first; i < graph_.nodes.size(); ++i) graph_.nodes[i].chunked = true;
}

UnitGraph GraphBuilder::finish(int output) {
  graph_.output = output;
  return std::move(graph_);
}

}  // namespace trireme::model
