#include "plan/emitter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme::plan {

namespace {

/// Transfers that may as well run on the compute stream. Those of a pipeline may not: one stage
/// would wait for a neighbour that waits for it.
bool is_collective_stream(StreamKind stream) {
  return stream == StreamKind::comm_dp || stream == StreamKind::comm_tp ||
         stream == StreamKind::comm_control;
}

/// One access a buffer: a buffer both read and written is updated.
std::vector<BufferAccess> merged(std::vector<BufferAccess> accesses) {
  std::stable_sort(accesses.begin(), accesses.end(),
                   [](const auto& a, const auto& b) { return a.buffer < b.buffer; });
  std::vector<BufferAccess> result;
  for (const BufferAccess& access : accesses) {
    if (access.buffer < 0) continue;
    if (result.empty() || result.back().buffer != access.buffer) {
      result.push_back(access);
      continue;
    }
    BufferAccess& known = result.back();
    if (known.access != access.access) known.access = Access::update;
    known.acquire |= access.acquire;
    known.release |= access.release;
    if (known.acquire && known.access == Access::update) known.access = Access::write;
  }
  return result;
}

}  // namespace

int32_t Emitter::add_buffer(std::string name, Owner owner, Space space, int64_t bytes) {
  program_.buffers.push_back({std::move(name), owner, space, bytes, false, -1});
  return static_cast<int32_t>(program_.buffers.size()) - 1;
}

int32_t Emitter::emit(Entry entry, std::vector<BufferAccess> accesses,
                      const std::vector<int32_t>& after) {
  if (!overlap_ && is_collective_stream(entry.stream)) entry.stream = StreamKind::compute;
  entry.accesses = merged(std::move(accesses));
  touches_.resize(program_.buffers.size());

  std::vector<int32_t> candidates = after;
  for (const BufferAccess& access : entry.accesses) {
    const Touch& touch = touches_[static_cast<size_t>(access.buffer)];
    if (touch.writer >= 0) candidates.push_back(touch.writer);
    if (access.access != Access::read) {
      candidates.insert(candidates.end(), touch.readers.begin(), touch.readers.end());
    }
  }
  // Later entries first: what they imply needs no wait of its own.
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  Clock known = order_.before(entry.stream);
  for (int32_t candidate : candidates) {
    if (order_.done(candidate, known)) continue;
    entry.waits.push_back(candidate);
    known = join(known, order_.after(candidate));
  }
  std::sort(entry.waits.begin(), entry.waits.end());

  const int32_t index = order_.size();
  order_.append(entry.stream, entry.waits);
  for (const BufferAccess& access : entry.accesses) {
    Touch& touch = touches_[static_cast<size_t>(access.buffer)];
    if (access.access == Access::read) {
      std::erase_if(touch.readers, [&](int32_t reader) {
        return program_.schedule[static_cast<size_t>(reader)].stream == entry.stream;
      });
      touch.readers.push_back(index);
    } else {
      touch.writer = index;
      touch.readers.clear();
    }
  }
  program_.schedule.push_back(std::move(entry));
  return index;
}

}  // namespace trireme::plan
