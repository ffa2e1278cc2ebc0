// What all lowerings share: spans of planes, transfers and flat operations on groups.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/lowering.h"

namespace trireme::plan {

class ProgramWriter {
 public:
  ProgramWriter(const LoweringContext& context, std::string name);

  /// Ends the program. The writer is spent.
  Program finish() { return std::move(program_); }

 protected:
  enum class Range { slice, whole };

  const Sharding& sharding() const { return *context_.sharding; }
  /// First element of the group that this rank owns.
  int64_t slice_begin(int g) const { return context_.group(g).slice * sharding().shard_rank; }
  /// The elements that this rank's optimizer updates.
  std::pair<int64_t, int64_t> owned_range(int g) const;
  /// Whether this rank's loss sums are the ones of its micro-batches that the world counts.
  bool counts_loss() const;
  /// Elements [begin, end) of the group within a plane that is whole or this rank's slice.
  Span plane_span(int g, int32_t buffer, bool whole, DType dtype, int64_t begin, int64_t end) const;
  Span value_span(int g, int64_t begin, int64_t end) const;

  /// Buffer of a pool's slot, made on first use.
  int32_t weight_slot(int g);
  int32_t gradient_slot(int g);

  void emit_optimizer(int g);
  /// In-place gather of a plane that persists whole from the owners' slices.
  TransferPiece gather_in_place(int g, int32_t buffer, DType dtype) const;
  /// Gather of a sliced value into its slot.
  TransferPiece gather_to_slot(int g);
  struct TransferWish {
    comm::CommKind kind{};
    GroupAxis axis{};
    DType dtype{};
    std::vector<TransferPiece> pieces = {};  // none: nothing is emitted
    bool set = true;
    int unit = -1;
    int micro_batch = -1;
    bool per_row = false;
    std::optional<DType> wire = {};
  };
  void emit_transfer(TransferWish wish, std::vector<BufferAccess> accesses,
                     const std::vector<int32_t>& after = {});
  int64_t workspace_of(const FlatOp& op) const;
  /// One entry of flat operations on the compute stream. Counts may differ between ranks, plans
  /// must not: the entry is there also without operations, with at least `workspace` bytes.
  void emit_ops(std::string_view what, std::vector<FlatOp> ops, std::vector<BufferAccess> accesses,
                int unit = -1, int64_t workspace = 0);
  void emit_copy(StreamKind stream, const Span& to, const Span& from,
                 std::vector<BufferAccess> accesses);
  void emit_port(StreamKind stream, const Port& port, std::vector<BufferAccess> accesses,
                 int micro_batch = -1);
  /// All-reduces `count` f64 sums of the world (alone: nothing, the buffers are one).
  void emit_sum(int32_t from, int32_t to, int64_t count);

  const LoweringContext& context_;
  Program program_;
  Emitter emitter_;

 private:
  FlatOp update_op(int g, const Segment& segment, int64_t begin, int64_t end) const;
  int32_t slot_buffer(std::map<std::pair<int32_t, int32_t>, int32_t>& made, const Pool& pool,
                      PoolPlace place, Owner owner, const std::string& prefix);

  std::map<std::pair<int32_t, int32_t>, int32_t> weight_slots_;
  std::map<std::pair<int32_t, int32_t>, int32_t> gradient_slots_;
  int32_t staging_buffer(StreamKind stream, int64_t bytes);
  std::map<std::string, int32_t> transfers_;  // by content: stored once
  std::map<StreamKind, int32_t> staging_;
};

}  // namespace trireme::plan
