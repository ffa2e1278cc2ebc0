#include "plan/verify.h"

#include <algorithm>

#include "ops/signature.h"
#include "plan/order.h"
#include "plan/placement.h"

namespace trireme::plan {

std::string describe(const Program& program, int32_t entry) {
  const Entry& e = program.schedule[static_cast<size_t>(entry)];
  std::string text = fmt::format("#{:03} {}", entry, e.what);
  if (e.unit >= 0) text += fmt::format(" unit {}", e.unit);
  if (e.micro_batch >= 0) text += fmt::format(" micro-batch {}", e.micro_batch);
  return text;
}

namespace {

using Fault = std::optional<std::string>;

/// Accesses and their order, entry by entry.
class ScheduleChecker {
 public:
  explicit ScheduleChecker(const Program& program)
      : program_(program), states_(program.buffers.size()) {}

  Fault run() {
    for (size_t i = 0; i < program_.schedule.size(); ++i) {
      entry_ = static_cast<int32_t>(i);
      const Entry& entry = program_.schedule[i];
      if (Fault fault = check_waits(entry)) return fault;
      order_.append(entry.stream, entry.waits);
      for (const BufferAccess& access : entry.accesses) {
        if (Fault fault = check_access(access)) return fault;
      }
    }
    for (size_t b = 0; b < states_.size(); ++b) {
      if (states_[b].live && !program_.buffers[b].persistent) {
        return fmt::format("{}: {} is acquired but never released", program_.name,
                           program_.buffers[b].name);
      }
    }
    return std::nullopt;
  }

  const Order& order() const { return order_; }

 private:
  struct BufferState {
    bool live = false;
    int32_t writer = -1;
    int32_t released = -1;          // end of the life before
    std::vector<int32_t> readers;   // since the last write
    std::vector<int32_t> accesses;  // of this life
  };

  std::string fault(const std::string& what) const {
    return fmt::format("{} {}: {}", program_.name, describe(program_, entry_), what);
  }
  std::string name(const BufferAccess& access) const {
    return program_.buffers[static_cast<size_t>(access.buffer)].name;
  }

  Fault check_waits(const Entry& entry) const {
    for (int32_t wait : entry.waits) {
      if (wait < 0 || wait >= entry_) return fault(fmt::format("waits for entry {}", wait));
      if (program_.schedule[static_cast<size_t>(wait)].stream == entry.stream) {
        return fault(fmt::format("waits for {} of its own stream", describe(program_, wait)));
      }
    }
    return std::nullopt;
  }

  Fault check_access(const BufferAccess& access) {
    BufferState& state = states_[static_cast<size_t>(access.buffer)];
    const bool persistent = program_.buffers[static_cast<size_t>(access.buffer)].persistent;
    if (persistent && (access.acquire || access.release)) {
      return fault(fmt::format("acquires or releases {}, which is persistent", name(access)));
    }
    if (access.acquire) {
      if (state.live) return fault(fmt::format("acquires {} twice", name(access)));
      if (state.released >= 0 && !order_.ordered(state.released, entry_)) {
        return fault(fmt::format("acquires {} while {} may still use it", name(access),
                                 describe(program_, state.released)));
      }
      state = {};
      state.live = true;
    }
    if (!persistent && !state.live) {
      return fault(fmt::format("touches {} outside its life", name(access)));
    }
    if (Fault bad = check_order(access, state, persistent)) return bad;
    record(access, state);
    if (access.release) {
      for (int32_t other : state.accesses) {
        if (other != entry_ && !order_.ordered(other, entry_)) {
          return fault(fmt::format("releases {} before {} is done with it", name(access),
                                   describe(program_, other)));
        }
      }
      state.live = false;
      state.released = entry_;
    }
    return std::nullopt;
  }

  Fault check_order(const BufferAccess& access, const BufferState& state, bool persistent) const {
    const bool reads = access.access != Access::write;
    if (reads && state.writer < 0 && !persistent) {
      return fault(fmt::format("reads {}, which nobody wrote", name(access)));
    }
    if (state.writer >= 0 && !order_.ordered(state.writer, entry_)) {
      return fault(fmt::format("{} {} without waiting for {}", reads ? "reads" : "writes",
                               name(access), describe(program_, state.writer)));
    }
    if (access.access == Access::read) return std::nullopt;
    for (int32_t reader : state.readers) {
      if (!order_.ordered(reader, entry_)) {
        return fault(fmt::format("writes {} while {} may still read it", name(access),
                                 describe(program_, reader)));
      }
    }
    return std::nullopt;
  }

  void record(const BufferAccess& access, BufferState& state) const {
    if (access.access == Access::read) {
      const StreamKind stream = program_.schedule[static_cast<size_t>(entry_)].stream;
      std::erase_if(state.readers, [&](int32_t reader) {
        return program_.schedule[static_cast<size_t>(reader)].stream == stream;
      });
      state.readers.push_back(entry_);
    } else {
      state.writer = entry_;
      state.readers.clear();
    }
    if (!program_.buffers[static_cast<size_t>(access.buffer)].persistent) {
      state.accesses.push_back(entry_);
    }
  }

  const Program& program_;
  Order order_;
  std::vector<BufferState> states_;
  int32_t entry_ = 0;
};

Fault check_memory(const Program& program, const Order& order, const ArenaBytes& arenas) {
  const auto lives = generations(program);
  const auto used = [&](size_t b) {
    return program.buffers[b].bytes > 0 && (program.buffers[b].persistent || !lives[b].empty());
  };
  for (size_t a = 0; a < program.buffers.size(); ++a) {
    const Buffer& x = program.buffers[a];
    if (!used(a)) continue;
    if (x.offset < 0 || x.offset + x.bytes > arenas[static_cast<size_t>(x.space)]) {
      return fmt::format("{}: {} lies outside its arena", program.name, x.name);
    }
    for (size_t b = a + 1; b < program.buffers.size(); ++b) {
      const Buffer& y = program.buffers[b];
      if (!used(b) || x.space != y.space) continue;
      if (x.offset >= y.offset + y.bytes || y.offset >= x.offset + x.bytes) continue;
      if (x.persistent || y.persistent || !may_share(lives[a], lives[b], order)) {
        const int32_t at = lives[b].empty() ? 0 : lives[b].front().acquire;
        return fmt::format("{} {}: {} and {} share memory while both live", program.name,
                           describe(program, at), x.name, y.name);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Fault find_fault(const Program& program, const ArenaBytes& arenas) {
  ScheduleChecker checker(program);
  if (Fault fault = checker.run()) return fault;
  for (const Phase& phase : program.phases) {
    if (Fault fault = find_fault(phase)) return program.name + " " + *fault;
  }
  return check_memory(program, checker.order(), arenas);
}

}  // namespace trireme::plan
