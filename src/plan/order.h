// Happens-before between the entries of one rank's program: vector clocks over streams.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace trireme::plan {

/// For each stream, how many of its entries are known to be done.
using Clock = std::array<int32_t, device::kNumStreams>;

/// Incremental: entries are appended in program order; a wait may only name an earlier entry.
class Order {
 public:
  /// What is known done before the next entry of `stream` may start, without further waits.
  Clock before(StreamKind stream) const;
  /// Appends an entry with these waits.
  void append(StreamKind stream, const std::vector<int32_t>& waits);
  /// Whether entry `a` is done before entry `b` starts.
  bool ordered(int32_t a, int32_t b) const;
  /// Whether `entry` is done in the state `clock`.
  bool done(int32_t entry, const Clock& clock) const;
  const Clock& clock(int32_t entry) const { return starts_[static_cast<size_t>(entry)]; }
  /// Clock after `entry` itself is done.
  Clock after(int32_t entry) const;
  int32_t size() const { return static_cast<int32_t>(starts_.size()); }

 private:
  static constexpr std::array<int32_t, device::kNumStreams> filled() {
    std::array<int32_t, device::kNumStreams> none{};
    none.fill(-1);
    return none;
  }

  std::vector<Clock> starts_;
  std::vector<StreamKind> streams_;
  std::vector<int32_t> places_;  // 1-based place in its stream
  std::array<int32_t, device::kNumStreams> last_ = filled();
};

Clock join(const Clock& a, const Clock& b);

/// The order that a schedule's streams and waits give.
Order order_of(const std::vector<Entry>& schedule);

}  // namespace trireme::plan
