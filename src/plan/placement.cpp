#include "plan/placement.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "plan/memory.h"

namespace trireme::plan {

std::vector<std::vector<Generation>> generations(const Program& program) {
  std::vector<std::vector<Generation>> lives(program.buffers.size());
  std::vector<bool> alive(program.buffers.size(), false);
  for (size_t i = 0; i < program.schedule.size(); ++i) {
    for (const BufferAccess& access : program.schedule[i].accesses) {
      const auto b = static_cast<size_t>(access.buffer);
      const auto index = static_cast<int32_t>(i);
      if (access.acquire) {
        check(!alive[b], "{} #{}: {} is acquired twice", program.name, i, program.buffers[b].name);
        lives[b].push_back({index, -1});
        alive[b] = true;
      }
      if (access.release) {
        check(alive[b], "{} #{}: {} is released but not acquired", program.name, i,
              program.buffers[b].name);
        lives[b].back().release = index;
        alive[b] = false;
      }
    }
  }
  for (size_t b = 0; b < alive.size(); ++b) {
    check(!alive[b], "{}: {} is never released", program.name, program.buffers[b].name);
  }
  return lives;
}

bool may_share(const std::vector<Generation>& a, const std::vector<Generation>& b,
               const Order& order) {
  size_t i = 0;
  size_t j = 0;
  // Walk both lists in schedule order; each neighbouring pair must be ordered.
  while (i < a.size() && j < b.size()) {
    const bool a_first = a[i].release < b[j].acquire;
    if (!a_first && b[j].release >= a[i].acquire) return false;
    const Generation& first = a_first ? a[i] : b[j];
    const Generation& second = a_first ? b[j] : a[i];
    if (!order.ordered(first.release, second.acquire)) return false;
    (a_first ? i : j) += 1;
  }
  return true;
}

namespace {

int64_t place_persistent(Program& program, Space space) {
  int64_t offset = 0;
  for (Buffer& buffer : program.buffers) {
    if (!buffer.persistent || buffer.space != space) continue;
    buffer.offset = offset;
    offset += round_up(buffer.bytes, kAlignment);
  }
  return offset;
}

int64_t place_transient(Program& program, Space space, int64_t base,
                        const std::vector<std::vector<Generation>>& lives, const Order& order) {
  std::vector<size_t> items;
  std::vector<int64_t> bytes;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || buffer.space != space) continue;
    items.push_back(b);
    // A slot that this program never fills needs no room.
    bytes.push_back(lives[b].empty() ? 0 : buffer.bytes);
  }
  Conflicts conflicts(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t j = i + 1; j < items.size(); ++j) {
      if (!may_share(lives[items[i]], lives[items[j]], order)) conflicts.add(i, j);
    }
  }
  const Packing packing = pack(bytes, conflicts);
  for (size_t i = 0; i < items.size(); ++i) {
    program.buffers[items[i]].offset = base + packing.offsets[i];
  }
  return base + packing.total;
}

}  // namespace

ArenaBytes place_buffers(const std::vector<Program*>& programs) {
  ArenaBytes arenas{};
  for (Program* program : programs) {
    const Order order = order_of(program->schedule);
    const auto lives = generations(*program);
    for (int s = 0; s < device::kNumSpaces; ++s) {
      const auto space = static_cast<Space>(s);
      const int64_t base = place_persistent(*program, space);
      int64_t& arena = arenas[static_cast<size_t>(s)];
      arena = std::max(arena, place_transient(*program, space, base, lives, order));
    }
  }
  return arenas;
}

Peak find_peak(const Program& program, Space space) {
  const auto lives = generations(program);
  std::vector<int64_t> change(program.schedule.size() + 1, 0);
  for (size_t b = 0; b < lives.size(); ++b) {
    if (program.buffers[b].space != space) continue;
    for (const Generation& life : lives[b]) {
      change[static_cast<size_t>(life.acquire)] += program.buffers[b].bytes;
      change[static_cast<size_t>(life.release) + 1] -= program.buffers[b].bytes;
    }
  }
  Peak peak;
  int64_t live = 0;
  for (size_t i = 0; i < program.schedule.size(); ++i) {
    live += change[i];
    if (live > peak.live_bytes) peak = {static_cast<int32_t>(i), live, {}};
  }
  for (size_t b = 0; b < lives.size(); ++b) {
    if (program.buffers[b].space != space) continue;
    for (const Generation& life : lives[b]) {
      if (life.acquire <= peak.entry && peak.entry <= life.release) {
        peak.buffers.push_back(static_cast<int32_t>(b));
      }
    }
  }
  return peak;
}

}  // namespace trireme::plan
