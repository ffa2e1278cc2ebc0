#include "plan/phase_builder.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "plan/fuse.h"
#include "plan/memory.h"

namespace trireme::plan {

namespace {

using model::Dim;
using model::LawRule;
using model::Node;
using model::NodeKind;
using model::Ref;
using model::UnitGraph;
using model::Value;

/// Lays the values of one ordered node list into storages, frame and instructions.
class PhaseBuilder {
 public:
  PhaseBuilder(const PhaseRequest& request, PhaseParts parts)
      : request_(request),
        graph_(*parts.graph),
        values_(*parts.values),
        nodes_(std::move(parts.nodes)),
        recomputed_(std::move(parts.recomputed)),
        external_(values_.size()) {
    recomputed_.resize(nodes_.size(), false);
    for (const Placing& placing : parts.bound) {
      if (placing.value < 0) continue;
      external_[static_cast<size_t>(placing.value)] = {placing.bound, placing.offset};
    }
  }

  Phase build(std::string name) {
    Phase phase;
    phase.name = std::move(name);
    phase.kind = request_.kind;
    phase.chunk = request_.chunk;
    std::vector<bool> kept;
    for (const External& external : external_) kept.push_back(external.bound != Bound::none);
    fuse(nodes_, recomputed_, kept);
    find_loop(phase);
    find_uses();
    share_storage();
    phase.frame_bytes = lay_frame();
    for (size_t i = 0; i < nodes_.size(); ++i) phase.instructions.push_back(instruction(i));
    add_waits(phase);
    return phase;
  }

 private:
  struct External {
    Bound bound = Bound::none;
    int64_t offset = 0;
  };
  struct Use {
    size_t first = SIZE_MAX;
    size_t last = 0;
    bool in_loop = false;
    bool outside_loop = false;
    bool used() const { return first != SIZE_MAX; }
  };

  void find_loop(Phase& phase) {
    loop_begin_ = loop_end_ = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].chunked) continue;
      if (loop_end_ == 0) loop_begin_ = i;
      check(loop_end_ == 0 || loop_end_ == i, "chunked nodes of a phase are not adjacent");
      loop_end_ = i + 1;
    }
    phase.loop_begin = static_cast<int>(loop_begin_);
    phase.loop_end = static_cast<int>(loop_end_);
  }

  bool looped(size_t node) const { return node >= loop_begin_ && node < loop_end_; }

  void find_uses() {
    uses_.assign(values_.size(), {});
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Ref& ref : nodes_[i].args) {
        if (ref.kind != Ref::Kind::value) continue;
        Use& use = uses_[static_cast<size_t>(ref.id)];
        use.first = std::min(use.first, i);
        use.last = std::max(use.last, i);
        (looped(i) ? use.in_loop : use.outside_loop) = true;
      }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!is_transfer(i)) continue;
      const auto [begin, end] = span_of(i);
      for (const Ref& ref : nodes_[i].args) {
        Use& use = uses_[static_cast<size_t>(ref.id)];
        use.first = std::min(use.first, begin);
        use.last = std::max(use.last, end);
      }
    }
    for (Use& use : uses_) {  // what crosses the edge of the loop lives through all of it
      if (!use.in_loop || !use.outside_loop) continue;
      use.first = std::min(use.first, loop_begin_);
      use.last = std::max(use.last, loop_end_ - 1);
    }
  }

  bool is_transfer(size_t node) const { return nodes_[node].kind != NodeKind::op; }

  /// A transfer runs beside the operations from the last that wrote its input to the first that
  /// reads its output: what it touches lives all that time.
  std::pair<size_t, size_t> span_of(size_t node) const {
    const Ref& out = nodes_[node].args[0];
    const Ref& in = nodes_[node].args[1];
    const auto touches = [&](size_t other, const Ref& ref, bool written) {
      const auto operands = operands_of(nodes_[other]);
      for (size_t a = 0; a < operands.size(); ++a) {
        const bool writes = operands[a].access != ops::Access::read;
        if (nodes_[other].args[a] == ref && writes == written) return true;
      }
      return false;
    };
    size_t begin = node;
    while (begin > 0 && !touches(begin, in, true)) --begin;
    size_t end = node;
    while (end + 1 < nodes_.size() && !(end > node && touches(end, out, false))) ++end;
    return {begin, end};
  }

  /// One chunk of rows is enough for a value that never leaves the loop.
  bool chunk_local(size_t id) const {
    return uses_[id].in_loop && !uses_[id].outside_loop && external_[id].bound == Bound::none &&
           (values_[id].rows == Dim::tokens || values_[id].rows == Dim::gathered);
  }

  /// An output takes over the storage of an input that is read for the last time.
  void share_storage() {
    storage_.resize(values_.size());
    std::iota(storage_.begin(), storage_.end(), size_t{0});
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (is_transfer(i)) continue;
      const auto operands = ops::signature(nodes_[i].op);
      for (size_t o = 0; o < nodes_[i].args.size(); ++o) {
        if (operands[o].access != ops::Access::write) continue;
        const int source = ops::may_alias(nodes_[i].op, static_cast<int>(o));
        if (source >= 0)
          try_share(i, nodes_[i].args[o], nodes_[i].args[static_cast<size_t>(source)]);
      }
    }
  }

  void try_share(size_t node, const Ref& out, const Ref& in) {
    if (out.kind != Ref::Kind::value || in.kind != Ref::Kind::value || out.id == in.id) return;
    const auto o = static_cast<size_t>(out.id);
    const size_t i = storage_[static_cast<size_t>(in.id)];
    const bool dies_here = uses_[static_cast<size_t>(in.id)].last == node && uses_[i].last <= node;
    if (uses_[o].first != node || !dies_here || storage_[o] != o) return;
    if (external_[i].bound != Bound::none ||
        external_[static_cast<size_t>(in.id)].bound != Bound::none)
      return;
    if (bytes(o) != bytes(i) || chunk_local(o) != chunk_local(i)) return;
    storage_[i] = storage_[static_cast<size_t>(in.id)] = o;
    for (size_t& s : storage_) s = s == i ? o : s;
    uses_[o].first = std::min(uses_[o].first, uses_[i].first);
  }

  int64_t bytes(size_t id) const {
    const Shape shape =
        shape_of(operand_of(id, false), request_.model->dims, request_.capacity, request_.chunk);
    return checked_mul(checked_mul(shape.rows, shape.cols),
                       size_of(dtype_of(values_[id], request_.compute)));
  }

  /// Packs frame storages and workspaces by the instructions during which they live.
  int64_t lay_frame() {
    std::vector<int64_t> sizes;
    std::vector<Use> lives;
    std::vector<size_t> owner(values_.size(), SIZE_MAX);
    for (size_t id = 0; id < values_.size(); ++id) {
      if (storage_[id] != id || !uses_[id].used() || external_[id].bound != Bound::none) continue;
      owner[id] = sizes.size();
      sizes.push_back(bytes(id));
      lives.push_back(uses_[id]);
    }
    const size_t num_values = sizes.size();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      sizes.push_back(workspace_of(i));
      const auto [begin, end] = is_transfer(i) ? span_of(i) : std::pair{i, i};
      lives.push_back({begin, end, looped(i), !looped(i)});
    }
    Conflicts conflicts(sizes.size());
    for (size_t a = 0; a < sizes.size(); ++a) {
      for (size_t b = a + 1; b < sizes.size(); ++b) {
        if (lives[a].first <= lives[b].last && lives[b].first <= lives[a].last) conflicts.add(a, b);
      }
    }
    const Packing packing = pack(sizes, conflicts);
    frame_offset_.assign(values_.size(), 0);
    for (size_t id = 0; id < values_.size(); ++id) {
      if (owner[id] != SIZE_MAX) frame_offset_[id] = packing.offsets[owner[id]];
    }
    workspace_offset_.assign(packing.offsets.begin() + static_cast<int64_t>(num_values),
                             packing.offsets.end());
    return packing.total;
  }

  /// The call at its largest extent, without pointers, for the backend's sizing rules.
  int64_t workspace_of(size_t node) const {
    const Node& n = nodes_[node];
    if (is_transfer(node)) return transfer_workspace(n);
    ops::OpCall call;
    call.kind = n.op;
    call.dtype = request_.compute;
    call.law = n.law == LawRule::set ? ops::Law::set : ops::Law::add;
    call.attributes = n.attributes;
    call.attributes.longest = static_cast<int32_t>(request_.capacity.longest);
    call.num_args = static_cast<int32_t>(n.args.size());
    for (size_t a = 0; a < n.args.size(); ++a) {
      const Operand o = operand(node, n.args[a]);
      const Shape shape = shape_of(o, request_.model->dims, request_.capacity, request_.chunk);
      call.args[a] = {nullptr, o.dtype, shape.rows, shape.cols, shape.cols};
    }
    if (!request_.sizing->supports(n.op, request_.compute)) {
      throw ConfigError("device", std::string(name_of(request_.compute)),
                        fmt::format("this backend has no {} in that precision; choose another "
                                    "device or precision",
                                    ops::name_of(n.op)));
    }
    return request_.sizing->workspace_bytes(call);
  }

  static comm::CommKind transfer_of(const Node& node) {
    return node.kind == NodeKind::leave ? comm::CommKind::reduce_scatter
                                        : comm::CommKind::all_gather;
  }

  int64_t transfer_workspace(const Node& node) const {
    comm::CommCall call;
    call.kind = transfer_of(node);
    const Ref& share = node.args[call.kind == comm::CommKind::all_gather ? 1 : 0];
    call.dtype = dtype_of(values_[static_cast<size_t>(share.id)], request_.compute);
    comm::CommPiece piece;
    piece.count = bytes(static_cast<size_t>(share.id)) / size_of(call.dtype);
    call.pieces = {&piece, 1};
    return request_.comm_sizing->workspace_bytes(call, request_.model->dims.tensor_ranks);
  }

  /// The operand of a value, before its place in the frame is known.
  Operand operand_of(size_t id, bool in_loop) const {
    const Value& value = values_[id];
    const size_t storage = storage_.empty() ? id : storage_[id];
    const External& external = external_[storage];
    Operand o;
    o.bound = external.bound == Bound::none ? Bound::frame : external.bound;
    o.offset = external.offset;
    o.rows = value.rows;
    o.cols = value.cols;
    o.dtype = dtype_of(value, request_.compute);
    o.chunk = chunk_local(id);
    o.sliced = in_loop && !o.chunk && value.rows == Dim::tokens;
    o.name = value.name;
    return o;
  }

  Operand operand(size_t node, const Ref& ref) const {
    Operand o;
    switch (ref.kind) {
      case Ref::Kind::none:
        return o;
      case Ref::Kind::value:
        o = operand_of(static_cast<size_t>(ref.id), looped(node));
        if (o.bound == Bound::frame && !frame_offset_.empty()) {
          o.offset = frame_offset_[storage_[static_cast<size_t>(ref.id)]];
          o.bytes = bytes(static_cast<size_t>(ref.id));
        }
        return o;
      case Ref::Kind::slot:
      case Ref::Kind::slot_gradient: {
        const bool gradient = ref.kind == Ref::Kind::slot_gradient;
        const model::Slot& slot = graph_.slots[static_cast<size_t>(ref.id)];
        return {gradient ? Bound::gradient : Bound::weight,
                ref.id,
                0,
                0,
                slot.rows,
                slot.cols,
                gradient ? DType::f32 : request_.compute,
                false,
                false,
                (gradient ? "d." : "") + slot.name};
      }
      case Ref::Kind::batch:
        o = {Bound::batch, ref.id,       0,     0, Dim::one, Dim::tokens,
             DType::i32,   looped(node), false, ""};
        return o;
      case Ref::Kind::rope_table:
        return {Bound::rope_table, 0, 0, 0, Dim::one, Dim::one, DType::f32, false, false, "rope"};
      case Ref::Kind::loss_sums:
        return {Bound::loss_sums, 0, 0, 0, Dim::one, Dim::two, DType::f64, false, false, "sums"};
    }
    return o;
  }

  Instruction instruction(size_t node) const {
    const Node& n = nodes_[node];
    Instruction made;
    made.op = n.op;
    if (is_transfer(node)) made.transfer = transfer_of(n);
    made.dtype = request_.compute;
    made.law = n.law;
    made.part = n.part;
    made.recomputed = recomputed_[node];
    made.attributes = n.attributes;
    for (const Ref& ref : n.args) made.args.push_back(operand(node, ref));
    made.workspace_bytes = workspace_of(node);
    made.workspace_offset = workspace_offset_[node];
    return made;
  }

  /// Orders operations and transfers, which run on two streams, by the storages they touch.
  void add_waits(Phase& phase) const {
    struct Touch {
      int writer = -1;
      int reader[2] = {-1, -1};  // latest since that write, by stream
    };
    std::map<size_t, Touch> touches;
    std::optional<int> known[2];  // latest instruction of the other stream that is waited for
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const int mine = is_transfer(i) ? 1 : 0;
      int before = kPhaseEntry;
      const auto follow = [&](int other) {
        if (other >= 0 && is_transfer(static_cast<size_t>(other)) != (mine == 1)) {
          before = std::max(before, other);
        }
      };
      const auto operands = operands_of(nodes_[i]);
      for (size_t a = 0; a < operands.size(); ++a) {
        const Ref& ref = nodes_[i].args[a];
        if (ref.kind != Ref::Kind::value) continue;
        Touch& touch = touches[storage_[static_cast<size_t>(ref.id)]];
        follow(touch.writer);
        if (operands[a].access == ops::Access::read) continue;
        follow(touch.reader[1 - mine]);
      }
      for (size_t a = 0; a < operands.size(); ++a) {
        const Ref& ref = nodes_[i].args[a];
        if (ref.kind != Ref::Kind::value) continue;
        Touch& touch = touches[storage_[static_cast<size_t>(ref.id)]];
        if (operands[a].access == ops::Access::read) {
          touch.reader[mine] = static_cast<int>(i);
        } else {
          touch = {static_cast<int>(i), {-1, -1}};
        }
      }
      // Operations start at the entry of the phase by themselves.
      if (before > known[mine].value_or(mine == 1 ? kPhaseEntry - 1 : kPhaseEntry)) {
        known[mine] = before;
        phase.instructions[i].wait = before;
      }
    }
    for (const Instruction& instruction : phase.instructions) {
      if (instruction.wait.value_or(kPhaseEntry) == kPhaseEntry) continue;
      phase.instructions[static_cast<size_t>(*instruction.wait)].awaited = true;
    }
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (!is_transfer(i)) continue;
      if (known[0].value_or(kPhaseEntry) < static_cast<int>(i)) {
        phase.last_wait = static_cast<int>(i);
        phase.instructions[i].awaited = true;
      }
      break;
    }
  }

  const PhaseRequest& request_;
  const UnitGraph& graph_;
  const std::vector<Value>& values_;
  std::vector<Node> nodes_;
  std::vector<bool> recomputed_;
  std::vector<External> external_;  // per value
  std::vector<Use> uses_;           // per storage after sharing
  std::vector<size_t> storage_;     // value -> value whose storage it uses
  std::vector<int64_t> frame_offset_;
  std::vector<int64_t> workspace_offset_;
  size_t loop_begin_ = 0;
  size_t loop_end_ = 0;
};

}  // namespace

DType dtype_of(const model::Value& value, DType compute) {
  switch (value.element) {
    case model::Element::compute:
      return compute;
    case model::Element::f32:
      return DType::f32;
    case model::Element::f64:
      return DType::f64;
  }
  return compute;
}

Phase build_phase(const PhaseRequest& request, PhaseParts parts, std::string name) {
  return PhaseBuilder(request, std::move(parts)).build(std::move(name));
}

}  // namespace trireme::plan
