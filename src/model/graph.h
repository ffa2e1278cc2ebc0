// The network as operations on named tensors, written once for one device.
//
// A model is a chain of units (embedding | block i | head), the grain of sharding, recomputation
// and pipelining. Units of the same structure share one UnitGraph (their kind) and differ only in
// the parameters bound to its slots. Nothing here knows a rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/model_config.h"
#include "ops/batch.h"
#include "ops/op.h"
#include "ops/signature.h"

namespace trireme::model {

using config::Recompute;

/// Named dimensions. Sizes come from the model (Dims) or from the micro-batch: `tokens` are all of
/// it, `sequence` the tensor-parallel rank's share of them outside the regions between enter and
/// leave, `gathered` one row of all tokens from each of these ranks.
enum class Dim : uint8_t {
  one,
  two,
  three,
  tokens,
  sequence,
  gathered,
  hidden,
  heads,
  head_dim,
  q,
  qkv,
  ffn,
  gate_up,
  vocab,
};
inline constexpr int kNumDims = 14;

/// Sizes of the named dimensions as one rank holds them; those of the micro-batch stay 0.
struct Dims {
  std::array<int64_t, kNumDims> size{};
  int64_t tensor_ranks = 1;
  int64_t operator[](Dim dim) const { return size[static_cast<size_t>(dim)]; }
  int64_t& operator[](Dim dim) { return size[static_cast<size_t>(dim)]; }
  /// Size of `dim` for a micro-batch of so many tokens.
  int64_t at(Dim dim, int64_t tokens) const;
};
Dims dims_of(const ModelConfig& config);

/// How the elements of a value are stored: in the compute dtype, or always the same.
enum class Element : uint8_t { compute, f32, f64 };

/// An intermediate tensor of a unit, (rows, cols).
struct Value {
  std::string name;
  Dim rows{};
  Dim cols{};
  Element element = Element::compute;
  /// Dropped after forward, and rebuilt before backward, from this recomputation level on.
  Recompute level = Recompute::block;
  /// Dropped at every level: it is gathered again from what is kept.
  bool gathered_again = false;
};

/// What a node reads or writes.
struct Ref {
  enum class Kind : uint8_t { none, value, slot, slot_gradient, batch, rope_table, loss_sums };
  Kind kind = Kind::none;
  int id = -1;  // value index, slot index or ops::BatchField
  bool operator==(const Ref&) const = default;
};

/// What a rank alone skips is what tensor-parallel ranks do together.
enum class NodeKind : uint8_t {
  op,
  enter,   // whole sequence from here on (all-gather)
  leave,   // partial sums become whole values of this rank's part of the sequence (reduce-scatter)
  merge,   // statistics of a part of the vocabulary become those of all (lowered: gather, combine)
  gather,  // the rows of every rank, one rank after the other (all-gather)
};

/// Which write law a node's `law` output follows.
enum class LawRule : uint8_t {
  set,
  add,
  /// The first writer of a parameter's gradient sets, later ones add; the schedule knows which.
  gradient,
  /// The first micro-batch sets, later ones add.
  first_micro_batch,
};

/// Which share of backward a node belongs to (zero-bubble schedules run them apart).
enum class Part : uint8_t { forward, input_gradient, weight_gradient };

struct Node {
  NodeKind kind = NodeKind::op;
  ops::OpKind op{};
  std::vector<Ref> args;  // signature order; of a boundary: out, in
  LawRule law = LawRule::set;
  Part part = Part::forward;
  /// Runs once per chunk of tokens (the loss): values between chunked nodes hold one chunk.
  bool chunked = false;
  ops::Attributes attributes{};
};

/// How a node touches its arguments, in their order.
std::span<const ops::Operand> operands_of(const Node& node);

enum class Init : uint8_t { normal, zeros, ones };

/// How tensor parallelism cuts a parameter (declared at creation).
enum class Split : uint8_t {
  rows,
  cols,
  replicated,  // whole on every rank, each of which sees a part of its gradient
};

/// A parameter operand of a unit kind: one matrix as the operation reads it, made of one or more
/// tensors of the Hugging Face folder that lie without gaps (q, k, v; gate, up).
struct Slot {
  std::string name;
  Dim rows{};
  Dim cols{};
};

struct UnitGraph {
  std::string name;  // "embedding", "block", "head"
  std::vector<Value> values;
  std::vector<Slot> slots;
  std::vector<Node> nodes;  // forward order
  int input = -1;           // value that is the previous unit's output; -1: reads the batch alone
  int output = -1;          // value handed to the next unit; -1: ends in the loss
};

/// One tensor of the Hugging Face folder.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Init init = Init::normal;
  Split split = Split::replicated;
  bool decay = true;
  bool trainable = true;
  int64_t size() const;
};

struct Unit {
  std::string name;  // "embed", "block.0", "head"
  int kind = 0;
  /// parameters[slot] = indices into ModelGraph::parameters, in storage order.
  std::vector<std::vector<int>> parameters;
};

struct ModelGraph {
  ModelConfig config;
  Dims dims;
  std::vector<UnitGraph> kinds;
  std::vector<Unit> units;
  std::vector<Parameter> parameters;

  int num_units() const { return static_cast<int>(units.size()); }
  const UnitGraph& graph(int unit) const { return kinds[static_cast<size_t>(units[unit].kind)]; }
  int64_t num_parameters() const;
  /// Throws ConfigError when a slot mixes trainable and frozen tensors, BugError for a graph that
  /// does not fit its own shapes.
  void validate() const;
};

/// The decoder of any family.
ModelGraph build_model(const ModelConfig& config);

}  // namespace trireme::model
