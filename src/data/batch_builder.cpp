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

// A bound of capacity_of that costs little: the longest samples in one micro-batch.
ops::Extent largest_possible(std::span<const int32_t> lengths, int64_t batch_size,
                             int64_t pad_multiple) {
  std::vector<int32_t> longest(static_cast<size_t>(std::min(batch_size, std::ssize(lengths))));
  std::partial_sort_copy(lengths.begin(), lengths.end(), longest.begin(), longest.end(),
                         std::greater<>());
  const int64_t tokens = std::accumulate(longest.begin(), longest.end(), int64_t{0});
  return {round_up(tokens, pad_multiple), std::ssize(longest), longest.front()};
}

void enlarge(ops::Extent* capacity, const ops::Extent& extent) {
  capacity->tokens = std::max(capacity->tokens, extent.tokens);
  capacity->sequences = std::max(capacity->sequences, extent.sequences);
  capacity->longest = std::max(capacity->longest, extent.longest);
}

}  // namespace

ops::Extent extent_of(std::span<const int32_t> lengths, std::span<const int32_t> samples,
                      int64_t pad_multiple) {
  ops::Extent extent;
  extent.sequences = std::ssize(samples);
  for (const int32_t sample : samples) {
    const int64_t length = lengths[static_cast<size_t>(sample)];
    extent.tokens += length;
    extent.longest = std::max(extent.longest, length);
  }
  extent.even = extent.sequences > 0 && extent.tokens == extent.sequences * extent.longest;
  extent.tokens = round_up(extent.tokens, pad_multiple);
  return extent;
}

ops::Extent capacity_of(std::span<const int32_t> lengths, const StepPlan& plan,
                        int64_t pad_multiple) {
  const StepPlanOptions& options = plan.options();
  check(std::ssize(lengths) == options.num_samples, "a plan for other samples");
  // A wrapped batch may hold a sample twice where there are fewer samples than a batch has.
  const bool repeats = options.even_batches && options.num_samples < options.batch_size;
  const ops::Extent bound = repeats ? ops::Extent{INT64_MAX, INT64_MAX, INT64_MAX}
                                    : largest_possible(lengths, options.batch_size, pad_multiple);
  EpochOrder order(options);
  ops::Extent capacity;
  for (int64_t step = 0; step < plan.total_steps() && capacity != bound; ++step) {
    const StepPlan::Step at = plan.at(step);
    if (!options.shuffle && at.epoch > 0) break;
    order.move_to(at.epoch);
    for (int64_t i = 0; i < at.num_micro_batches; ++i) {
      for (int64_t rank = 0; rank < options.num_ranks; ++rank) {
        const auto samples = order.batch(rank, at.first_micro_batch + i);
        enlarge(&capacity, extent_of(lengths, samples, pad_multiple));
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
