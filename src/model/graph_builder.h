// Small vocabulary to write unit graphs in; used by the model families.
#pragma once

#include <string>
#include <vector>

#include "model/graph.h"

namespace trireme::model {

inline Ref value_ref(int id) { return {Ref::Kind::value, id}; }
inline Ref slot_ref(int id) { return {Ref::Kind::slot, id}; }
inline Ref slot_gradient_ref(int id) { return {Ref::Kind::slot_gradient, id}; }
inline Ref batch_ref(ops::BatchField field) { return {Ref::Kind::batch, static_cast<int>(field)}; }
inline Ref rope_table_ref() { return {Ref::Kind::rope_table, 0}; }
inline Ref loss_sums_ref() { return {Ref::Kind::loss_sums, 0}; }

/// Builds one UnitGraph; every method appends a node and returns the index of its result.
class GraphBuilder {
 public:
  GraphBuilder(std::string name, const ModelConfig& config);

  int slot(std::string name, Dim rows, Dim cols);
  /// Declares the hidden states that come from the previous unit.
  int input();
  int embedding(int table_slot);
  int rms_norm(int x, int gain_slot);
  /// `bias_slot` -1: none. `level`: from which recomputation level the result is dropped.
  int linear(std::string name, int x, int weight_slot, int bias_slot, Dim cols, Recompute level);
  /// `gain_slot` (two, head_dim): of query heads, of key heads.
  int qk_norm(int qkv, int gain_slot);
  int rope(int qkv);
  int attention(int qkv);
  int swiglu(int gate_up);
  int add(std::string name, int a, int b);
  int enter(int x);
  int leave(int x);
  /// Vocabulary logits and the loss, in chunks of tokens.
  void loss(int x, int vocab_slot);
  UnitGraph finish(int output);

 private:
  int new_value(std::string name, Dim rows, Dim cols, Element element, Recompute level);
  int boundary(NodeKind kind, int x);
  const Value& value(int id) const { return graph_.values[static_cast<size_t>(id)]; }
  Node& node(ops::OpKind op, std::vector<Ref> args);

  const ModelConfig& config_;
  UnitGraph graph_;
};

}  // namespace trireme::model
