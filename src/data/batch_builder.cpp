#include "data/batch_builder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace trireme::data {
namespace {

/// Adds sequences up.
class ExtentSum {
 public:
  void add(int64_t length) {
    ++sum_.sequences;
    sum_.tokens += length;
    sum_.longest = std::max(sum_.longest, length);
    sum_.lengths.add(length);
  }
  ops::Extent padded(int64_t pad_multiple) const {
    ops::Extent extent = sum_;
    extent.even = extent.sequences > 0 && extent.tokens == extent.sequences * extent.longest;
    extent.tokens = round_up(extent.tokens, pad_multiple);
    return extent;
  }

 private:
  ops::Extent sum_;
};

int64_t sum_of_largest(std::span<const int64_t> values, int64_t count) {
  std::vector<int64_t> largest(static_cast<size_t>(std::min(count, std::ssize(values))));
  std::partial_sort_copy(values.begin(), values.end(), largest.begin(), largest.end(),
                         std::greater<>());
  return std::accumulate(largest.begin(), largest.end(), int64_t{0});
}

// A bound of capacity_of that costs little: the largest packs in one micro-batch.
ops::Extent largest_possible(std::span<const int32_t> lengths, const Packs& packs,
                             int64_t batch_size, int64_t pad_multiple) {
  std::vector<int64_t> tokens, sequences;
  ops::Extent bound;
  for (int32_t pack = 0; pack < packs.size(); ++pack) {
    const ops::Extent extent = extent_of(lengths, packs.samples(pack), 1);
    tokens.push_back(extent.tokens);
    sequences.push_back(extent.sequences);
    bound.longest = std::max(bound.longest, extent.longest);
  }
  bound.tokens = round_up(sum_of_largest(tokens, batch_size), pad_multiple);
  bound.sequences = sum_of_largest(sequences, batch_size);
  return bound;
}

void enlarge(ops::Extent* capacity, const ops::Extent& extent) {
  capacity->tokens = std::max(capacity->tokens, extent.tokens);
  capacity->sequences = std::max(capacity->sequences, extent.sequences);
  capacity->longest = std::max(capacity->longest, extent.longest);
}

}  // namespace

ops::Extent extent_of(std::span<const int32_t> lengths, std::span<const int32_t> samples,
                      int64_t pad_multiple) {
  ExtentSum sum;
  for (const int32_t sample : samples) sum.add(lengths[static_cast<size_t>(sample)]);
  return sum.padded(pad_multiple);
}

ops::Extent extent_of(std::span<const int32_t> lengths, const Packs& packs,
                      std::span<const int32_t> batch, int64_t pad_multiple) {
  ExtentSum sum;
  for (const int32_t pack : batch) {
    for (const int32_t sample : packs.samples(pack)) sum.add(lengths[static_cast<size_t>(sample)]);
  }
  return sum.padded(pad_multiple);
}

ops::Extent capacity_of(std::span<const int32_t> lengths, const Packs& packs, const StepPlan& plan,
                        int64_t pad_multiple) {
  const StepPlanOptions& options = plan.options();
  check(std::ssize(lengths) == packs.num_samples() && packs.size() == options.num_samples,
        "a plan for other samples");
  // A batch that is filled up holds a pack twice where there are fewer packs than it takes.
  const bool repeats = options.even_batches && options.num_samples < options.batch_size;
  const ops::Extent bound =
      repeats ? ops::Extent{INT64_MAX, INT64_MAX, INT64_MAX}
              : largest_possible(lengths, packs, options.batch_size, pad_multiple);
  EpochOrder order(options);
  ops::Extent capacity;
  for (int64_t step = 0; step < plan.total_steps() && capacity != bound; ++step) {
    const StepPlan::Step at = plan.at(step);
    if (!options.shuffle && at.epoch > 0) break;
    order.move_to(at.epoch);
    for (int64_t i = 0; i < at.num_micro_batches; ++i) {
      for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
        const auto batch = order.batch(rank, at.first_micro_batch + i);
        enlarge(&capacity, extent_of(lengths, packs, batch, pad_multiple));
      }
    }
  }
  return capacity;
}

BatchBuilder::BatchBuilder(const ops::Extent& capacity)
    : scratch_(static_cast<size_t>(capacity.tokens)) {}

ops::Extent BatchBuilder::build(const Dataset& dataset, std::span<const int32_t> samples,
                                const ops::BatchLayout& layout, int64_t pad_multiple,
                                int32_t* out) {
  using Field = ops::BatchField;
  const ops::Extent extent = extent_of(dataset.lengths(), samples, pad_multiple);
  check(extent.tokens <= layout.capacity.tokens && extent.sequences <= layout.capacity.sequences,
        "a micro-batch of {} tokens in {} sequences, for which {} and {} were planned",
        extent.tokens, extent.sequences, layout.capacity.tokens, layout.capacity.sequences);
  int32_t* const ids = out + layout.offset(Field::ids);
  int32_t* const targets = out + layout.offset(Field::targets);
  int32_t* const positions = out + layout.offset(Field::positions);
  int32_t* const order = out + layout.offset(Field::order);
  int32_t* const cu_seqlens = out + layout.offset(Field::cu_seqlens);

  int64_t at = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    cu_seqlens[i] = static_cast<int32_t>(at);
    const auto tokens = dataset.ids(samples[i]);
    const auto labels = dataset.labels(samples[i]);
    std::copy(tokens.begin(), tokens.end(), ids + at);
    if (!labels.empty()) {
      int32_t* const last = std::copy(labels.begin() + 1, labels.end(), targets + at);
      *last = kNotTrained;
    }
    std::iota(positions + at, positions + at + std::ssize(tokens), 0);
    at += std::ssize(tokens);
  }
  cu_seqlens[samples.size()] = static_cast<int32_t>(at);
  sort_tokens({ids, static_cast<size_t>(at)}, order);
  std::fill(ids + at, ids + extent.tokens, -1);
  std::fill(targets + at, targets + extent.tokens, kNotTrained);
  std::fill(positions + at, positions + extent.tokens, 0);
  std::fill(order + at, order + extent.tokens, -1);
  return extent;
}

// A radix sort: each pass keeps the order of the one before, so equal ids stay by index.
void BatchBuilder::sort_tokens(std::span<const int32_t> ids, int32_t* order) {
  constexpr int kBits = 11;
  constexpr uint32_t kBuckets = 1u << kBits;
  if (ids.empty()) return;
  if (scratch_.size() < ids.size()) scratch_.resize(ids.size());
  const auto largest = static_cast<uint32_t>(*std::max_element(ids.begin(), ids.end()));
  const int num_passes = std::max(1, static_cast<int>(ceil_div(std::bit_width(largest), kBits)));
  // The passes alternate between two buffers so that the last one ends in `order`.
  int32_t* from = num_passes % 2 == 0 ? order : scratch_.data();
  int32_t* to = num_passes % 2 == 0 ? scratch_.data() : order;
  std::iota(from, from + ids.size(), 0);
  for (int pass = 0; pass < num_passes; ++pass) {
    const auto bucket = [&](int32_t index) {
      return (static_cast<uint32_t>(ids[static_cast<size_t>(index)]) >> (pass * kBits)) &
             (kBuckets - 1);
    };
    std::array<int32_t, kBuckets + 1> begin{};
    for (size_t i = 0; i < ids.size(); ++i) ++begin[bucket(from[i]) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (size_t i = 0; i < ids.size(); ++i) to[begin[bucket(from[i])]++] = from[i];
    std::swap(from, to);
  }
}

}  // namespace trireme::data
