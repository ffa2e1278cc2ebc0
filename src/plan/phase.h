// Phases: the short instruction lists that a step calls many times, one per kind of unit.
//
// A phase is stored once, with formal operands; the schedule says for which unit and micro-batch it
// runs, and the unit says which buffers that means. It has one entry and one exit point on the
// compute stream; collectives inside it run on comm_tp beside the operations. Its temporaries and
// workspaces are one frame, packed by the memory planner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "model/adjoint.h"
#include "model/graph.h"
#include "ops/batch.h"
#include "ops/op.h"

namespace trireme::plan {

/// The buffer a formal operand is bound to when the phase is called.
enum class Bound : uint8_t {
  none,
  frame,
  saved,     // the unit's values kept from forward to backward
  deferred,  // and from the input gradient to the weight gradient
  input,  // hidden states from the previous unit
  output,
  output_gradient,
  input_gradient,
  weight,    // `index` = slot
  gradient,  // `index` = slot
  batch,     // `index` = ops::BatchField
  rope_table,
  loss_sums,
};
std::string_view name_of(Bound bound);

struct Operand {
  Bound bound = Bound::none;
  int32_t index = 0;
  int64_t offset = 0;  // bytes within frame or saved
  int64_t bytes = 0;   // frame: at capacity
  model::Dim rows{};
  model::Dim cols{};
  DType dtype{};
  /// In a chunk loop: rows of the current chunk of a value that holds all tokens.
  bool sliced = false;
  /// Holds one chunk of rows.
  bool chunk = false;
  std::string name;  // for printing
};

/// What an instruction waits for where there is none before it on the other stream: the entry of
/// the phase.
inline constexpr int kPhaseEntry = -1;

struct Instruction {
  ops::OpKind op{};
  /// A collective over the tensor-parallel ranks instead of `op`. Args: out, in.
  std::optional<comm::CommKind> transfer;
  DType dtype{};
  model::LawRule law = model::LawRule::set;
  model::Part part = model::Part::forward;
  bool recomputed = false;
  std::vector<Operand> args;
  ops::Attributes attributes{};
  int64_t workspace_offset = 0;  // in the frame
  int64_t workspace_bytes = 0;
  /// Instruction of the other stream (operations on compute, transfers on comm_tp) that must be
  /// done first, in this trip round the loop; or kPhaseEntry.
  std::optional<int> wait;
  bool awaited = false;  // by an instruction of the other stream, or at the exit
};
/// How an instruction touches its arguments, in their order.
std::span<const ops::Operand> operands_of(const Instruction& instruction);

struct Phase {
  std::string name;  // "forward", "backward", "loss", "evaluate", "evaluate loss"
  int kind = 0;
  std::vector<Instruction> instructions;
  /// Instructions [loop_begin, loop_end) run once per `chunk` tokens; empty: no loop.
  int loop_begin = 0;
  int loop_end = 0;
  int64_t chunk = 0;
  int64_t frame_bytes = 0;
  /// The gradient of the input is that of the output, updated in place.
  bool gradient_in_place = false;
  /// Transfer that compute waits for before the exit.
  std::optional<int> last_wait;

  bool transfers() const;
  bool uses(Bound bound) const;
  bool writes(Bound bound) const;
  /// Slots bound to weights or gradients, ascending.
  std::vector<int> slots(Bound bound) const;
  /// Slots whose gradient is written, in the order of their first writers.
  std::vector<int> gradients_in_order() const;
};

/// What a unit of one variant runs. A variant is a kind with its trainable slots, recomputation
/// level and whether gradients flow through it.
struct UnitPhases {
  Phase forward;   // empty instructions for the head
  Phase backward;  // the head: forward, loss and backward in one; empty: nothing to do
  Phase weight_gradient;  // split backward: the rest of it; empty: nothing is put off
  Phase evaluate;  // forward without anything kept; the head: with the loss
  int64_t saved_bytes = 0;
  int64_t deferred_bytes = 0;
  /// The input itself is read in backward.
  bool keeps_input = false;
};

struct PhaseRequest {
  const model::ModelGraph* model = nullptr;
  int kind = 0;
  std::vector<bool> trainable;  // per slot
  bool backward = true;         // something trainable in this unit or upstream
  bool input_gradient = true;   // something trainable upstream
  bool split_backward = false;  // weight gradients of products in a phase of their own
  model::Recompute level = model::Recompute::none;
  DType compute = DType::f32;
  ops::Extent capacity;
  int64_t chunk = 0;  // tokens per chunk of the loss
  const ops::OpSizing* sizing = nullptr;
  const comm::CommSizing* comm_sizing = nullptr;
};

/// ConfigError when the backend lacks a body for an operation of the unit.
UnitPhases build_phases(const PhaseRequest& request);

/// Elements of a formal operand at an extent (`rows` x `cols`), chunk slices at most one chunk.
struct Shape {
  int64_t rows = 0;
  int64_t cols = 0;
};
Shape shape_of(const Operand& operand, const model::Dims& dims, const ops::Extent& extent,
               int64_t chunk);

}  // namespace trireme::plan
