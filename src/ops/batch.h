// The batch descriptor: what a micro-batch is, as one i32 buffer that each rank builds alone.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace trireme::ops {

/// How many sequences have which length: entry k counts those of at most 64 * 2^k tokens that no
/// entry before it counts; the last one, all that are longer. All 0: not known.
struct LengthCounts {
  static constexpr int kClasses = 16;
  static constexpr int64_t kShortest = 64;
  std::array<int32_t, kClasses> of_class{};

  static constexpr int64_t longest_of(int k) { return kShortest << k; }
  constexpr void add(int64_t length) {
    const auto steps = static_cast<uint64_t>(std::max<int64_t>(length, 1) - 1) / kShortest;
    ++of_class[static_cast<size_t>(std::min<int>(std::bit_width(steps), kClasses - 1))];
  }
  constexpr bool known() const {
    return std::ranges::any_of(of_class, [](int32_t count) { return count > 0; });
  }
  bool operator==(const LengthCounts&) const = default;
};

/// Sizes of one micro-batch, known to the host before the step; also used as capacity.
struct Extent {
  int64_t tokens = 0;  // padded rows
  int64_t sequences = 0;
  int64_t longest = 0;  // longest sequence, in tokens
  bool even = false;    // every sequence has exactly `longest` tokens
  LengthCounts lengths{};
  bool operator==(const Extent&) const = default;
};

enum class BatchField : int { ids, targets, positions, order, cu_seqlens };
inline constexpr int kNumBatchFields = 5;

/// Fields lie at fixed offsets of a capacity: ids, targets, positions, order (capacity.tokens
/// each), then cu_seqlens (capacity.sequences + 1).
///   ids        token ids; -1 in padding rows
///   targets    the next token of the same sequence where its label is trained, else -100
///   positions  index within the sequence; 0 in padding
///   order      indices of real tokens sorted by (id, index), then -1
///   cu_seqlens first token of each sequence, then the number of real tokens
struct BatchLayout {
  Extent capacity;
  int64_t offset(BatchField field) const { return capacity.tokens * static_cast<int64_t>(field); }
  /// Entries of a field at `extent`.
  static int64_t size(BatchField field, const Extent& extent) {
    return field == BatchField::cu_seqlens ? extent.sequences + 1 : extent.tokens;
  }
  /// i32 entries of the whole descriptor.
  int64_t total() const { return 4 * capacity.tokens + capacity.sequences + 1; }
};

}  // namespace trireme::ops
