// Backward derived from forward: every operation has an adjoint rule.
#pragma once

#include <vector>

#include "model/graph.h"

namespace trireme::model {

struct AdjointRequest {
  std::vector<bool> trainable;  // per slot
  bool input_gradient = false;  // something trainable lies upstream
};

/// Forward values keep their indices; gradients of values are appended to `values`.
struct Adjoint {
  std::vector<Value> values;  // the graph's, then gradients
  std::vector<Node> nodes;    // in an order in which backward may run
  int output_gradient = -1;   // value to be filled with the gradient of `output`; -1 for the head
  /// Value that ends up holding the gradient of `input`; may be `output_gradient` itself, updated
  /// in place. -1 when not requested.
  int input_gradient = -1;
};

/// Derives backward. Nodes upstream of which nothing trainable lies are pruned. A gradient with
/// several contributions is summed in the order of the nodes: the first sets, later ones add; it is
/// updated in place where nobody reads the old value afterwards, else copied first.
Adjoint derive_adjoint(const UnitGraph& graph, const AdjointRequest& request);

/// The graph without its boundaries: what a rank without tensor-parallel neighbours runs.
UnitGraph without_boundaries(const UnitGraph& graph);

}  // namespace trireme::model
