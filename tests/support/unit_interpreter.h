// Unit graphs in double: the nodes of a graph and of its adjoint, one by one, over the reference
// operations. Slow and plain: the oracle of adjoints and of whole training steps.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "contract/reference.h"
#include "data/dataset.h"
#include "model/adjoint.h"
#include "model/graph.h"

namespace trireme::testing {

using contract::Tensor;

/// The fields of a descriptor (ops/batch.h) that the reference operations read.
struct BatchFields {
  contract::Ints ids, targets, positions, cu_seqlens;
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
};
/// One sequence a sample, rows padded to a multiple.
BatchFields batch_of(const data::Dataset& dataset, std::span<const int32_t> samples,
                     int64_t pad_multiple = 1);

/// What the nodes of one unit read and write.
struct UnitTensors {
  std::vector<Tensor> slots;
  std::vector<Tensor> values;          // NaN until written, so that a read too early shows
  std::vector<Tensor> slot_gradients;  // zero at first; nodes add to them, and to the loss sums
  Tensor loss_sums{1, 2};
};

class UnitInterpreter {
 public:
  /// Borrows all of it.
  UnitInterpreter(const model::Dims& dims, const Tensor& rope_table, const BatchFields& batch)
      : dims_(dims), rope_table_(rope_table), batch_(batch) {}

  /// Empty tensors for a graph, or for its adjoint, whose values begin with the graph's.
  UnitTensors tensors(const model::UnitGraph& graph, const std::vector<model::Value>& values) const;
  void run(const std::vector<model::Node>& nodes, UnitTensors& tensors) const;
  Tensor empty(model::Dim rows, model::Dim cols, double value) const;

 private:
  const model::Dims& dims_;
  const Tensor& rope_table_;
  const BatchFields& batch_;
};

Tensor rope_table_of(const model::ModelConfig& config, int64_t positions);

// Whole models -------------------------------------------------------------------------------

using DoubleTensors = std::map<std::string, std::vector<double>>;  // by parameter name

struct LossSums {
  double loss = 0;
  double tokens = 0;
  DoubleTensors gradients;  // of the loss sum, by the trainable parameters
};

/// Adds one micro-batch; `gradients` false: the loss alone.
void add_micro_batch(const model::ModelGraph& model, const DoubleTensors& weights,
                     const BatchFields& batch, bool gradients, LossSums& sums);

}  // namespace trireme::testing
