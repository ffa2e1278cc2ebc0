// The step as data: buffers, and a schedule of phases, transfers, flat operations, copies and
// ports.
//
// Two levels: what runs is stored once (phases per kind of unit, transfers and flat operations per
// group); the schedule says when, for which unit and micro-batch, on which stream, after what.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "ops/op.h"
#include "plan/axes.h"
#include "plan/phase.h"

namespace trireme::plan {

using device::Space;
using device::StreamKind;

/// Whom a byte is accounted to, in the table of planned memory.
enum class Owner : uint8_t {
  weights,
  masters,
  moments,
  gradients,
  weight_slots,
  gradient_slots,
  activations,
  frames,
  batch,
  control,
  staging,
};
inline constexpr int kNumOwners = 11;
std::string_view name_of(Owner owner);

/// A range of an arena. Persistent buffers come first and have the same offset in every program of
/// a run; the others live from an acquiring to a releasing entry, possibly many times a step.
struct Buffer {
  std::string name;
  Owner owner{};
  Space space = Space::device;
  int64_t bytes = 0;
  bool persistent = false;
  int64_t offset = -1;  // in the arena of `space`
};

/// `count` elements of a buffer.
struct Span {
  int32_t buffer = -1;  // -1: absent
  DType dtype = DType::f32;
  int64_t offset = 0;  // bytes
  int64_t count = 0;
  bool operator==(const Span&) const = default;
};

struct TransferPiece {
  int32_t send = -1;
  int32_t receive = -1;
  int64_t send_offset = 0;  // bytes
  int64_t receive_offset = 0;
  int64_t count = 0;  // elements, as comm::CommPiece
  int64_t stride = 0;
};

struct Transfer {
  comm::CommKind kind{};
  GroupAxis axis = GroupAxis::shard;
  DType dtype{};
  std::vector<TransferPiece> pieces;
  Span workspace;
  /// Counts are those of one row of the micro-batch's hidden states, of which a rank holds
  /// tokens / tensor ranks; nothing is sent of an empty micro-batch.
  bool per_row = false;
  std::optional<DType> wire = {};  // as in comm::CommCall
};

/// One operation on flat ranges; empty rows follow the write law like any other.
struct FlatOp {
  ops::OpKind op{};
  DType dtype{};
  ops::Law law = ops::Law::set;
  std::vector<Span> args;
  ops::Attributes attributes{};
  Span workspace;
};

struct Copy {
  Span to;
  Span from;
  bool operator==(const Copy&) const = default;
};

/// Where host data enters or leaves: the run binds a function to each, called in stream order with
/// the address of a pinned buffer.
enum class PortKind : uint8_t {
  batch,           // fill the descriptor of a micro-batch
  metrics,         // read the control block
  eval_sums,       // read the evaluation sums
  constants,       // fill a constant, see ConstantKind
  load,            // fill fp32 values of a range of a group's plane
  save,            // read values of a range of a group's plane, as kept
  export_weights,  // read gathered weights of a range of a group
};
std::string_view name_of(PortKind kind);

/// What a `constants` port fills: the learning rates, the rotary table, or the control block.
enum class ConstantKind : int32_t { schedule, rope_table, control };

/// Planes of a group as files know them.
enum class Plane : uint8_t { master, exp_avg, exp_avg_sq, gradient };
std::string_view name_of(Plane plane);

struct Port {
  PortKind kind{};
  Span buffer;         // pinned
  int32_t group = -1;  // load, save, export; constants: see ConstantKind
  Plane plane{};       // load, save
  int64_t begin = 0;   // first element within the group, or of the constant
  bool operator==(const Port&) const = default;
};

/// What the formal operands of a phase mean for one unit and those micro-batches that use the same
/// turn of its buffers.
struct Binding {
  int32_t input = -1;
  int32_t output = -1;
  int32_t saved = -1;
  int32_t deferred = -1;
  int32_t output_gradient = -1;
  int32_t input_gradient = -1;
  std::vector<Span> weights;    // per slot
  std::vector<Span> gradients;  // per slot
};

enum class EntryKind : uint8_t { phase, transfer, ops, copy, port };

enum class Access : uint8_t { read, write, update };
struct BufferAccess {
  int32_t buffer = -1;
  Access access{};
  bool acquire = false;  // the buffer's life begins here
  bool release = false;  // and ends here
};

struct Entry {
  EntryKind kind{};
  StreamKind stream = StreamKind::compute;
  int32_t item = -1;  // index into phases, transfers, copies, ports; ops: first of `count`
  int32_t count = 1;  // ops: how many
  int32_t unit = -1;
  int32_t micro_batch = -1;
  int32_t binding = -1;
  int32_t frame = -1;          // phase: buffer of its frame
  int32_t batch = -1;          // phase: buffer of its batch descriptor
  uint64_t set_slots = 0;      // phase: bit s = the gradient of slot s is set, not added to
  bool set = true;             // phase: the loss sums are set; transfer: reduce_scatter sets
  std::string_view what;       // "forward", "all_gather", "optimizer", ...
  std::vector<int32_t> waits;  // entries of other streams that must be done first
  std::vector<BufferAccess> accesses;
};

struct Program {
  std::string name;  // "train[2]", "flush", "evaluate", ...
  std::vector<Buffer> buffers;
  std::vector<Phase> phases;
  std::vector<Transfer> transfers;
  std::vector<FlatOp> ops;
  std::vector<Copy> copies;
  std::vector<Port> ports;
  std::vector<Binding> bindings;
  std::vector<Entry> schedule;
  int32_t rope_table = -1;  // buffers of the formal operands that all phases share
  int32_t loss_sums = -1;
  int64_t loss_sums_offset = 0;  // bytes

  /// Instructions stored, whatever the length of the schedule.
  int64_t num_stored_instructions() const;
};

/// Bytes of an arena that a set of programs needs.
using ArenaBytes = std::array<int64_t, device::kNumSpaces>;

}  // namespace trireme::plan
