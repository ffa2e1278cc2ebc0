// What a micro-batch is made of: packs, each of one sample or, where samples are packed, of as many
// as fit. Samples stay whole, with positions and attention of their own (ops/batch.h): a pack costs
// what its tokens cost, and is one of the `per_device_train_batch_size` that StepPlan deals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

/// Immutable. Every sample is in exactly one pack.
class Packs {
 public:
  /// Pack i is sample i.
  explicit Packs(int64_t num_samples);

  /// Best fit, decreasing (TRL's `bfd`): samples from the longest to the shortest, equally long
  /// ones by index, each into the pack that it leaves the least room in; of packs with equal room
  /// into the one that came to it first; into a new one where none has room. Packs are numbered as
  /// they are opened. A pure function of its arguments; every length is in 1..max_tokens. O(n log
  /// n).
  static Packs best_fit(std::span<const int32_t> lengths, int64_t max_tokens);

  int64_t size() const { return std::ssize(begin_) - 1; }
  int64_t num_samples() const { return std::ssize(samples_); }
  /// At least one; in a pack of several, from the longest to the shortest.
  std::span<const int32_t> samples(int32_t pack) const {
    const auto begin = static_cast<size_t>(begin_[static_cast<size_t>(pack)]);
    const auto end = static_cast<size_t>(begin_[static_cast<size_t>(pack) + 1]);
    return {samples_.data() + begin, end - begin};
  }

 private:
  Packs() = default;

  std::vector<int32_t> samples_;  // of one pack after another
  std::vector<int32_t> begin_;    // (packs + 1): where each begins in samples_
};

}  // namespace trireme::data
