#include "exec/executor.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "exec/phase_call.h"

namespace trireme::exec {

using device::StreamKind;
using plan::Entry;
using plan::EntryKind;
using plan::Program;

/// A program with its addresses, events and call arguments resolved once.
class Executor::Prepared {
 public:
  Prepared(const Executor& executor, const Program& program, int first_event)
      : executor_(executor), program_(program), begin_event_(first_event) {
    resolve_ops();
    resolve_transfers();
    resolve_ports();
    number_events(first_event + 1);
  }

  int num_events() const { return num_events_; }

  void for_each_call(const ops::Extent& extent,
                     const std::function<void(const ops::OpCall&)>& visit) const {
    std::set<std::pair<int32_t, uint64_t>> seen;  // phase and which gradients are set
    for (const Entry& entry : program_.schedule) {
      if (entry.kind == EntryKind::ops) {
        for (int32_t i = 0; i < entry.count; ++i) visit(ops_[static_cast<size_t>(entry.item + i)]);
      }
      if (entry.kind != EntryKind::phase) continue;
      if (seen.emplace(entry.item, entry.set_slots).second) {
        for_each_op(phase_call(entry, extent), visit);
      }
    }
  }

  void run(std::span<const ops::Extent> extents, int64_t run) {
    device::Device& device = executor_.device_;
    // Programs start and end with a join of the rank's own streams.
    device.record(StreamKind::compute, begin_event_);
    for (int s = 1; s < device::kNumStreams; ++s) {
      if (end_event_[static_cast<size_t>(s)] >= 0) {
        device.wait(static_cast<StreamKind>(s), begin_event_);
      }
    }
    for (size_t i = 0; i < program_.schedule.size(); ++i) {
      const Entry& entry = program_.schedule[i];
      for (int32_t wait : entry.waits)
        device.wait(entry.stream, events_[static_cast<size_t>(wait)]);
      EntryObserver* const observer = executor_.options_.observer;
      if (observer != nullptr) observer->begin(program_, entry, run);
      launch_entry(i, extents, run);
      if (observer != nullptr) observer->end(entry);
      if (executor_.options_.poison) poison(entry);
      if (events_[i] >= 0) device.record(entry.stream, events_[i]);
    }
    for (int s = 1; s < device::kNumStreams; ++s) {
      const int event = end_event_[static_cast<size_t>(s)];
      if (event < 0) continue;
      device.record(static_cast<StreamKind>(s), event);
      device.wait(StreamKind::compute, event);
    }
  }

 private:
  struct PortContext {
    PortHandler* handler = nullptr;
    const plan::Port* port = nullptr;
    std::byte* data = nullptr;
    int32_t micro_batch = 0;
  };

  std::byte* address(int32_t buffer, int64_t offset = 0) const {
    const plan::Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
    return executor_.arenas_[static_cast<size_t>(b.space)] + b.offset + offset;
  }
  std::byte* address(const plan::Span& span) const {
    return span.buffer < 0 ? nullptr : address(span.buffer, span.offset);
  }

  void resolve_ops() {
    for (const plan::FlatOp& flat : program_.ops) {
      ops::OpCall call;
      call.kind = flat.op;
      call.dtype = flat.dtype;
      call.law = flat.law;
      call.attributes = flat.attributes;
      call.num_args = static_cast<int32_t>(flat.args.size());
      for (size_t a = 0; a < flat.args.size(); ++a) {
        if (flat.args[a].buffer < 0) continue;
        call.args[a] = vector(address(flat.args[a]), flat.args[a].dtype, flat.args[a].count);
      }
      call.workspace = address(flat.workspace);
      call.workspace_bytes = flat.workspace.count;
      ops_.push_back(call);
    }
  }

  void resolve_transfers() {
    for (const plan::Transfer& transfer : program_.transfers) {
      auto& pieces = pieces_.emplace_back();
      for (const plan::TransferPiece& piece : transfer.pieces) {
        pieces.push_back({address(piece.send, piece.send_offset),
                          address(piece.receive, piece.receive_offset), piece.count, piece.stride});
      }
      comm::CommCall call;
      call.kind = transfer.kind;
      call.group = executor_.groups_[static_cast<size_t>(transfer.axis)];
      call.dtype = transfer.dtype;
      call.wire = transfer.wire;
      call.root = transfer.kind == comm::CommKind::send ? 1 : 0;  // pairs: first to second
      call.workspace = address(transfer.workspace);
      call.workspace_bytes = transfer.workspace.count;
      transfers_.push_back(call);
    }
    for (size_t i = 0; i < transfers_.size(); ++i) transfers_[i].pieces = pieces_[i];
  }

  void resolve_ports() {
    contexts_.resize(program_.schedule.size());
    for (size_t i = 0; i < program_.schedule.size(); ++i) {
      const Entry& entry = program_.schedule[i];
      if (entry.kind != EntryKind::port) continue;
      const plan::Port& port = program_.ports[static_cast<size_t>(entry.item)];
      contexts_[i] = {&executor_.ports_, &port, address(port.buffer), entry.micro_batch};
    }
  }

  void number_events(int next) {
    const int first = next;
    events_.assign(program_.schedule.size(), -1);
    end_event_.fill(-1);
    for (const Entry& entry : program_.schedule) {
      for (int32_t wait : entry.waits) {
        int& event = events_[static_cast<size_t>(wait)];
        if (event < 0) event = next++;
      }
      int& end = end_event_[static_cast<size_t>(entry.stream)];
      if (entry.stream != StreamKind::compute && end < 0) end = next++;
    }
    num_events_ = 1 + next - first;
  }

  PhaseCall phase_call(const Entry& entry, const ops::Extent& extent) const {
    return {&executor_.plan_,
            &program_,
            &program_.phases[static_cast<size_t>(entry.item)],
            &entry,
            &program_.bindings[static_cast<size_t>(entry.binding)],
            executor_.arenas_[static_cast<size_t>(plan::Space::device)],
            extent};
  }

  void launch_entry(size_t index, std::span<const ops::Extent> extents, int64_t run) {
    const Entry& entry = program_.schedule[index];
    device::Device& device = executor_.device_;
    switch (entry.kind) {
      case EntryKind::phase: {
        const PhaseCall call = phase_call(entry, extents[static_cast<size_t>(entry.micro_batch)]);
        launch_phase(call);
        return;
      }
      case EntryKind::transfer:
        launch_transfer(entry, extents);
        return;
      case EntryKind::ops:
        for (int32_t i = 0; i < entry.count; ++i) {
          device.launch(entry.stream, ops_[static_cast<size_t>(entry.item + i)]);
        }
        return;
      case EntryKind::copy: {
        const plan::Copy& copy = program_.copies[static_cast<size_t>(entry.item)];
        device.copy(entry.stream, address(copy.to), address(copy.from),
                    copy.to.count * size_of(copy.to.dtype));
        return;
      }
      case EntryKind::port:
        device.call(entry.stream, {&Prepared::call_port, &contexts_[index], run});
        return;
    }
  }

  /// Where the instructions of a phase run, and their events.
  struct PhaseStreams {
    StreamKind operations{};
    StreamKind transfers{};
    int first_event = 0;  // the entry; then one an instruction
    bool two() const { return operations != transfers; }
    int event(int instruction) const { return first_event + 1 + instruction; }
  };

  void launch_phase(const PhaseCall& call) {
    device::Device& device = executor_.device_;
    const StreamKind own = call.entry->stream;
    const bool beside = executor_.plan_.sharding.overlap && call.phase->transfers();
    const PhaseStreams streams{own, beside ? StreamKind::comm_tp : own, executor_.phase_events_};
    if (streams.two()) device.record(own, streams.event(plan::kPhaseEntry));
    // The capture is small: steps take no memory.
    for_each_instruction(
        call, [this, &streams](const InstructionCall& made) { launch(streams, made); });
    if (streams.two() && call.phase->last_wait) {
      device.wait(own, streams.event(*call.phase->last_wait));
    }
  }

  void launch(const PhaseStreams& streams, const InstructionCall& made) {
    device::Device& device = executor_.device_;
    const plan::Instruction& instruction = *made.instruction;
    const StreamKind stream = instruction.transfer ? streams.transfers : streams.operations;
    if (streams.two() && instruction.wait) device.wait(stream, streams.event(*instruction.wait));
    if (instruction.transfer) {
      comm::CommCall transfer = made.transfer;
      transfer.group = executor_.groups_[static_cast<size_t>(plan::GroupAxis::tensor)];
      transfer.pieces = {&made.piece, 1};
      device.launch(stream, transfer);
    } else {
      device.launch(stream, made.op);
    }
    if (streams.two() && instruction.awaited) device.record(stream, streams.event(made.index));
  }

  void launch_transfer(const Entry& entry, std::span<const ops::Extent> extents) {
    comm::CommCall call = transfers_[static_cast<size_t>(entry.item)];
    call.law = entry.set ? ops::Law::set : ops::Law::add;
    if (!program_.transfers[static_cast<size_t>(entry.item)].per_row) {
      executor_.device_.launch(entry.stream, call);
      return;
    }
    comm::CommPiece piece = call.pieces[0];
    piece.count *= executor_.plan_.model.dims.at(
        model::Dim::sequence, extents[static_cast<size_t>(entry.micro_batch)].tokens);
    if (piece.count == 0) return;  // an empty micro-batch, on both sides
    call.pieces = {&piece, 1};
    executor_.device_.launch(entry.stream, call);
  }

  static void call_port(void* context, int64_t run) {
    const auto& c = *static_cast<const PortContext*>(context);
    c.handler->handle(*c.port, c.data, run, c.micro_batch);
  }

  void poison(const Entry& entry) {
    constexpr uint8_t kNan = 0xff;
    for (const plan::BufferAccess& access : entry.accesses) {
      if (!access.release) continue;
      const int64_t bytes = program_.buffers[static_cast<size_t>(access.buffer)].bytes;
      executor_.device_.fill(entry.stream, address(access.buffer), kNan, bytes);
    }
  }

  const Executor& executor_;
  const Program& program_;
  std::vector<ops::OpCall> ops_;
  std::vector<std::vector<comm::CommPiece>> pieces_;
  std::vector<comm::CommCall> transfers_;
  std::vector<PortContext> contexts_;  // per entry
  std::vector<int> events_;            // per entry; -1: nobody waits for it
  std::array<int, device::kNumStreams> end_event_{};
  int begin_event_ = 0;
  int num_events_ = 0;
};

namespace {

/// Phases run one after the other and share events: one for the entry, one an instruction.
int count_phase_events(const plan::Plan& plan) {
  size_t most = 0;
  for (const Program* program : plan.programs()) {
    for (const plan::Phase& phase : program->phases) {
      if (phase.transfers()) most = std::max(most, phase.instructions.size() + 1);
    }
  }
  return static_cast<int>(most);
}

}  // namespace

Executor::Executor(const plan::Plan& plan, device::Device& device, comm::Communicator& communicator,
                   PortHandler& ports, const ExecutorOptions& options)
    : plan_(plan), device_(device), ports_(ports), options_(options) {
  make_groups(communicator);
  for (int s = 0; s < device::kNumSpaces; ++s) {
    arenas_[s] =
        device.allocate(static_cast<device::Space>(s), plan.arenas[static_cast<size_t>(s)]);
  }
  ticket_events_ = 0;
  phase_events_ = static_cast<int>(kTicketsKept) + 1;
  int next_event = phase_events_ + count_phase_events(plan);
  for (const Program* program : plan.programs()) {
    auto made = std::make_unique<Prepared>(*this, *program, next_event);
    next_event += made->num_events();
    prepared_[program] = std::move(made);
  }
  device.create_events(next_event);
}

Executor::~Executor() = default;

/// Every rank makes every group, in the same order; group 0 is the world.
void Executor::make_groups(comm::Communicator& communicator) {
  check(plan_.mesh.layout.world_size() == communicator.world_size(),
        "a plan for {} ranks in a world of {}", plan_.mesh.layout.world_size(),
        communicator.world_size());
  const int rank = communicator.rank();
  for (const plan::AxisGroup& made : plan::axis_groups(plan_.mesh)) {
    const int group = communicator.add_group(made.ranks);
    if (std::find(made.ranks.begin(), made.ranks.end(), rank) == made.ranks.end()) continue;
    groups_[static_cast<size_t>(plan::axis_seen_by(made, rank))] = group;
  }
}

Executor::Prepared& Executor::prepared(const Program& program) {
  const auto at = prepared_.find(&program);
  check(at != prepared_.end(), "program {} is not of this plan", program.name);
  return *at->second;
}

Ticket Executor::run(const Program& program, std::span<const ops::Extent> extents, int64_t run) {
  prepared(program).run(extents, run);
  const Ticket ticket = next_ticket_++;
  device_.record(StreamKind::compute,
                 ticket_events_ + static_cast<int>(ticket % (kTicketsKept + 1)));
  return ticket;
}

void Executor::for_each_call(const Program& program, const ops::Extent& extent,
                             const std::function<void(const ops::OpCall&)>& visit) {
  prepared(program).for_each_call(extent, visit);
}

void Executor::wait(Ticket ticket) {
  check(ticket >= 0 && ticket < next_ticket_ && ticket + kTicketsKept >= next_ticket_ - 1,
        "ticket {} of {} is no longer kept", ticket, next_ticket_);
  device_.synchronize(ticket_events_ + static_cast<int>(ticket % (kTicketsKept + 1)));
}

void Executor::finish(const Program& program, int64_t run_number) {
  wait(run(program, {}, run_number));
}

}  // namespace trireme::exec
