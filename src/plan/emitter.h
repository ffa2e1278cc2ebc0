// Appends entries to a program and derives their waits from the buffers they touch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/order.h"
#include "plan/program.h"

namespace trireme::plan {

class Emitter {
 public:
  /// `overlap` false puts every collective on the compute stream.
  Emitter(Program& program, bool overlap) : program_(program), overlap_(overlap) {}

  int32_t add_buffer(std::string name, Owner owner, Space space, int64_t bytes);

  /// Appends; waits for the last writer of what is read, and for the last writer and all readers of
  /// what is written, where another stream did that and no earlier wait covers it. `after`: entries
  /// to wait for besides. Returns the entry's index.
  int32_t emit(Entry entry, std::vector<BufferAccess> accesses,
               const std::vector<int32_t>& after = {});

 private:
  struct Touch {
    int32_t writer = -1;
    std::vector<int32_t> readers;  // since the last write
  };

  Program& program_;
  bool overlap_;
  Order order_;
  std::vector<Touch> touches_;  // per buffer
};

/// Accesses in short: reads, writes (overwrites), updates.
inline BufferAccess reads(int32_t buffer) { return {buffer, Access::read, false, false}; }
inline BufferAccess writes(int32_t buffer) { return {buffer, Access::write, false, false}; }
inline BufferAccess updates(int32_t buffer) { return {buffer, Access::update, false, false}; }
inline BufferAccess acquired(BufferAccess access) {
  access.acquire = true;
  return access;
}
inline BufferAccess released(BufferAccess access) {
  access.release = true;
  return access;
}

}  // namespace trireme::plan
