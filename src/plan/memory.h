// The memory planner: sizes and conflicts in, offsets out. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::plan {

inline constexpr int64_t kAlignment = 256;  // bytes, of every buffer

struct Packing {
  std::vector<int64_t> offsets;
  int64_t total = 0;
};

/// Which items may not share a byte: symmetric, indices into the items.
class Conflicts {
 public:
  explicit Conflicts(size_t items) : items_(items), rows_(items * ((items + 63) / 64)) {}
  void add(size_t a, size_t b) {
    set(a, b);
    set(b, a);
  }
  bool test(size_t a, size_t b) const { return (rows_[word(a, b)] >> (b % 64)) & 1u; }
  size_t items() const { return items_; }

 private:
  size_t word(size_t a, size_t b) const { return a * ((items_ + 63) / 64) + b / 64; }
  void set(size_t a, size_t b) { rows_[word(a, b)] |= uint64_t{1} << (b % 64); }

  size_t items_;
  std::vector<uint64_t> rows_;
};

/// Offsets such that conflicting items do not overlap, all multiples of kAlignment. Tries several
/// greedy orders and keeps the smallest total. Items of zero bytes get offset 0.
Packing pack(const std::vector<int64_t>& bytes, const Conflicts& conflicts);

}  // namespace trireme::plan
