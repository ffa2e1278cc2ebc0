#include "data/batch_source.h"

#include <utility>

#include "base/error.h"

namespace trireme::data {

BatchSource::BatchSource(const Dataset& dataset, Packs packs, const StepPlan& plan, int64_t rank,
                         int64_t pad_multiple)
    : dataset_(dataset),
      packs_(std::move(packs)),
      plan_(plan),
      rank_(rank),
      pad_multiple_(pad_multiple),
      capacity_(capacity_of(dataset.lengths(), packs_, plan, pad_multiple)),
      orders_{EpochOrder(plan.options()), EpochOrder(plan.options())},
      builder_(capacity_) {
  check(rank >= 0 && rank < plan.options().num_ranks, "rank {} of {}", rank,
        plan.options().num_ranks);
  samples_.reserve(static_cast<size_t>(capacity_.sequences));
}

const EpochOrder& BatchSource::order_of(int64_t epoch) {
  EpochOrder& order = orders_[static_cast<size_t>(epoch % 2)];
  order.move_to(epoch);
  return order;
}

ops::Extent BatchSource::extent(int64_t step, int64_t micro_batch) {
  return extent(step, micro_batch, rank_);
}

ops::Extent BatchSource::extent(int64_t step, int64_t micro_batch, int64_t rank) {
  const StepPlan::Step at = plan_.at(step);
  const std::lock_guard lock(order_mutex_);
  const auto batch = order_of(at.epoch).batch(rank, at.first_micro_batch + micro_batch);
  return extent_of(dataset_.lengths(), packs_, batch, pad_multiple_);
}

ops::Extent BatchSource::fill(int64_t step, int64_t micro_batch, const ops::BatchLayout& layout,
                              int32_t* out) {
  const StepPlan::Step at = plan_.at(step);
  const std::lock_guard fill_lock(fill_mutex_);
  {
    const std::lock_guard lock(order_mutex_);
    samples_.clear();
    for (const int32_t pack : order_of(at.epoch).batch(rank_, at.first_micro_batch + micro_batch)) {
      const auto samples = packs_.samples(pack);
      samples_.insert(samples_.end(), samples.begin(), samples.end());
    }
  }
  return builder_.build(dataset_, samples_, layout, pad_multiple_, out);
}

ops::Extent BatchSource::whole_step(int64_t step) {
  const StepPlan::Step at = plan_.at(step);
  const std::lock_guard lock(order_mutex_);
  const auto batches = order_of(at.epoch).batches(at.first_micro_batch, at.num_micro_batches);
  return extent_of(dataset_.lengths(), packs_, batches, 1);
}

}  // namespace trireme::data
