// Tensor parallelism as a transformation: the model as one tensor-parallel rank holds it.
//
// Products are cut by heads, by gate and up halves and by vocabulary; the sequence is cut where
// every rank would do the same work. The boundaries of the graph become collectives over the
// tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "model/graph.h"

namespace trireme::plan {

/// Over whom a parameter's gradient is summed beside the data ranks.
enum class SumGroup : uint8_t {
  none,
  tensor,       // every tensor-parallel rank saw a part of the sequence
  kv_replicas,  // ranks that hold the same key and value heads
};

/// What a rank holds of one parameter.
struct LocalTensor {
  mesh::Box box;       // of the global tensor
  int64_t stored = 0;  // elements, the padding behind the box included
  SumGroup sum = SumGroup::none;
  /// Whether this rank's copy is the one that norms and checkpoints count.
  bool counted = true;
};

struct TensorPart {
  model::ModelGraph model;           // dims, attributes and boundaries of this rank
  std::vector<LocalTensor> tensors;  // per parameter; shapes of parameters stay global
  int64_t kv_replicas = 1;           // neighbouring ranks that hold the same KV heads
};

/// ConfigError naming tensor_parallel_size when heads or the feed-forward size cannot be cut.
TensorPart tensor_part(const model::ModelGraph& model, int64_t tensor_ranks, int64_t rank);

}  // namespace trireme::plan
