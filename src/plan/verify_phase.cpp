// Inside a phase: what is read was written before, and its two streams are in order.
#include <algorithm>
#include <array>

#include "plan/verify.h"

namespace trireme::plan {

namespace {

using Fault = std::optional<std::string>;

std::string describe(const Phase& phase, int index) {
  const Instruction& instruction = phase.instructions[static_cast<size_t>(index)];
  return fmt::format(
      "phase {} instruction {} {}", phase.name, index,
      instruction.transfer ? comm::name_of(*instruction.transfer) : ops::name_of(instruction.op));
}

/// The instructions in the order of launch, a loop followed round twice, up to the first fault.
template <typename Step>
Fault walk(const Phase& phase, const Step& step) {
  for (int i = 0; i < static_cast<int>(phase.instructions.size()); ++i) {
    if (Fault fault = step(i)) return fault;
    if (i + 1 != phase.loop_end) continue;
    for (int j = phase.loop_begin; j < phase.loop_end; ++j) {
      if (Fault fault = step(j)) return fault;
    }
  }
  return std::nullopt;
}

/// Reads of the frame see what was written there last, also the second time round a loop.
class PhaseChecker {
 public:
  explicit PhaseChecker(const Phase& phase) : phase_(phase) {}

  Fault run() {
    return walk(phase_, [this](int index) { return step(index); });
  }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    bool operator==(const Range&) const = default;
  };
  static Range range_of(const Operand& o) { return {o.offset, o.offset + o.bytes}; }

  Fault step(int index) {
    const Instruction& instruction = phase_.instructions[static_cast<size_t>(index)];
    const auto operands = operands_of(instruction);
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const Operand& operand = instruction.args[a];
      const bool adds = operands[a].law && instruction.law != model::LawRule::set;
      const bool reads = operands[a].access != ops::Access::write || adds;
      if (operand.bound != Bound::frame || !reads || written(range_of(operand))) continue;
      return fmt::format("{}: reads {}, which was not written or was overwritten",
                         describe(phase_, index), operand.name);
    }
    clobber(
        {instruction.workspace_offset, instruction.workspace_offset + instruction.workspace_bytes});
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const Operand& operand = instruction.args[a];
      if (operand.bound != Bound::frame || operands[a].access == ops::Access::read) continue;
      clobber(range_of(operand));
      written_.push_back(range_of(operand));
    }
    return std::nullopt;
  }

  bool written(const Range& range) const {
    return std::find(written_.begin(), written_.end(), range) != written_.end();
  }
  void clobber(const Range& range) {
    std::erase_if(written_,
                  [&](const Range& w) { return w.begin < range.end && range.begin < w.end; });
  }

  const Phase& phase_;
  std::vector<Range> written_;
};

/// Operations and transfers that touch the same bytes, one of them writing, are ordered by the
/// order of a stream or by waits.
class StreamChecker {
 public:
  explicit StreamChecker(const Phase& phase) : phase_(phase) {
    position_.assign(phase.instructions.size(), -1);
  }

  Fault run() {
    if (Fault fault = walk(phase_, [this](int index) { return step(index); })) return fault;
    if (phase_.last_wait) known_[0] = std::max(known_[0], position_of(*phase_.last_wait));
    for (const Touch& touch : touches_) {
      if (touch.stream == 0 || touch.position <= known_[0]) continue;
      return fmt::format("phase {}: ends before {} is done", phase_.name,
                         describe(phase_, touch.index));
    }
    return std::nullopt;
  }

 private:
  struct Touch {
    int stream = 0;    // 0: operations, 1: transfers
    int position = 0;  // in the order of launch
    int index = 0;
    Bound bound{};
    int64_t begin = 0;  // bytes of the frame or of kept values; else 0
    int64_t end = 0;
    bool writes = false;
  };

  int position_of(int index) const { return position_[static_cast<size_t>(index)]; }

  static bool overlap(const Touch& a, const Touch& b) {
    return a.bound == b.bound && a.begin < b.end && b.begin < a.end;
  }

  Fault step(int index) {
    const Instruction& instruction = phase_.instructions[static_cast<size_t>(index)];
    const int stream = instruction.transfer ? 1 : 0;
    const auto at = static_cast<size_t>(stream);
    if (stream == 1 && !instruction.wait && !entered_) {
      return fmt::format("{}: may start before the phase", describe(phase_, index));
    }
    entered_ |= stream == 1;
    if (instruction.wait.value_or(kPhaseEntry) != kPhaseEntry) {
      known_[at] = std::max(known_[at], position_of(*instruction.wait));
    }
    const std::vector<Touch> mine = touches_of(instruction, index, stream);
    for (const Touch& touch : mine) {
      for (const Touch& other : touches_) {
        if (other.stream == stream || !overlap(touch, other)) continue;
        if (!touch.writes && !other.writes) continue;
        if (other.position > known_[at]) {
          return fmt::format("{}: does not wait for {}", describe(phase_, index),
                             describe(phase_, other.index));
        }
      }
    }
    touches_.insert(touches_.end(), mine.begin(), mine.end());
    position_[static_cast<size_t>(index)] = next_++;
    return std::nullopt;
  }

  std::vector<Touch> touches_of(const Instruction& instruction, int index, int stream) const {
    std::vector<Touch> found;
    const auto operands = operands_of(instruction);
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const Operand& operand = instruction.args[a];
      const bool writes = operands[a].access != ops::Access::read;
      switch (operand.bound) {
        case Bound::frame:
          found.push_back({stream, next_, index, operand.bound, operand.offset,
                           operand.offset + operand.bytes, writes});
          break;
        case Bound::saved:
        case Bound::deferred:  // values begin at places of their own
          found.push_back({stream, next_, index, operand.bound, operand.offset, operand.offset + 1,
                           writes});
          break;
        case Bound::input:
        case Bound::output:
        case Bound::output_gradient:
        case Bound::input_gradient:
          found.push_back({stream, next_, index, operand.bound, 0, 1, writes});
          break;
        default:  // transfers touch none of the others
          break;
      }
    }
    if (instruction.workspace_bytes > 0) {
      found.push_back({stream, next_, index, Bound::frame, instruction.workspace_offset,
                       instruction.workspace_offset + instruction.workspace_bytes, true});
    }
    return found;
  }

  const Phase& phase_;
  std::vector<int> position_;           // per instruction: of its latest launch
  std::array<int, 2> known_ = {-1, -1};  // per stream: what of the other one is known done
  bool entered_ = false;
  int next_ = 0;
  std::vector<Touch> touches_;
};

}  // namespace

Fault find_fault(const Phase& phase) {
  if (Fault fault = PhaseChecker(phase).run()) return fault;
  return phase.transfers() ? StreamChecker(phase).run() : std::nullopt;
}

}  // namespace trireme::plan
