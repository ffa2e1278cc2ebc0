#include "plan/step_events.h"

#include <algorithm>
#include <limits>

namespace trireme::plan {

namespace {

/// Lives of micro-batches, which begin in their order.
class Lives {
 public:
  explicit Lives(int micro_batches)
      : first_(static_cast<size_t>(micro_batches), std::numeric_limits<int>::max()),
        last_(static_cast<size_t>(micro_batches), -1) {}

  void touch(int micro_batch, int time) {
    const auto m = static_cast<size_t>(micro_batch);
    first_[m] = std::min(first_[m], time);
    last_[m] = std::max(last_[m], time);
  }

  /// The fewest buffers such that m and m + that never live at the same time.
  int turns() const {
    int most = 1;
    for (size_t m = 0; m < first_.size(); ++m) {
      for (size_t later = m + 1; later < first_.size() && first_[later] <= last_[m]; ++later) {
        most = std::max(most, static_cast<int>(later - m) + 1);
      }
    }
    return most;
  }

 private:
  std::vector<int> first_;
  std::vector<int> last_;
};

class Lister {
 public:
  Lister(const LoweringContext& context, bool train, int micro_batches)
      : context_(context), train_(train), micro_batches_(micro_batches) {}

  StepEvents run() {
    const std::vector<Slot> work = work_of_step();
    for (const Slot& slot : work) {
      if (slot.work == Work::forward) {
        forward(slot);
      } else {
        if (slot.work != Work::weight_gradient) backward(slot);
        if (slot.work != Work::input_gradient) weight_gradient(slot);
      }
    }
    count_turns(work);
    result_.last_of_batch.resize(static_cast<size_t>(micro_batches_));
    for (size_t e = 0; e < result_.events.size(); ++e) {
      result_.last_of_batch[static_cast<size_t>(result_.events[e].micro_batch)] = e;
    }
    return std::move(result_);
  }

 private:
  const Pipeline& pipeline() const { return *context_.pipeline; }

  std::vector<Slot> work_of_step() const {
    if (train_) return pipeline().work(micro_batches_);
    std::vector<Slot> forwards;
    for (int c = 0; c < pipeline().chunks(); ++c) forwards.push_back({Work::forward, c, 0});
    return forwards;
  }

  void act(ActionKind kind, const Slot& slot) {
    result_.actions.push_back({kind, 0, slot.chunk, slot.micro_batch});
  }
  void run(int unit, const Slot& slot, Pass pass) {
    result_.actions.push_back(
        {ActionKind::run, result_.events.size(), slot.chunk, slot.micro_batch});
    result_.events.push_back({unit, slot.chunk, slot.micro_batch, pass});
  }

  void forward(const Slot& slot) {
    const UnitRange& units = pipeline().units(slot.chunk);
    if (!pipeline().first(slot.chunk)) act(ActionKind::receive_input, slot);
    for (int u = units.begin; u < units.end; ++u) {
      const bool loss = context_.model->graph(u).output < 0;
      if (!train_ || !loss) run(u, slot, Pass::forward);
    }
    if (!pipeline().last(slot.chunk)) act(ActionKind::send_output, slot);
  }

  bool gradient_in(int unit) const {
    return pipeline().gradient_in[static_cast<size_t>(unit)];
  }

  void backward(const Slot& slot) {
    const UnitRange& units = pipeline().units(slot.chunk);
    if (!pipeline().last(slot.chunk) && gradient_in(units.end)) {
      act(ActionKind::receive_gradient, slot);
    }
    for (int u = units.end - 1; u >= units.begin; --u) {
      if (!context_.phases(u).backward.instructions.empty()) run(u, slot, Pass::backward);
    }
    if (!pipeline().first(slot.chunk) && gradient_in(units.begin)) {
      act(ActionKind::send_gradient, slot);
    }
  }

  void weight_gradient(const Slot& slot) {
    const UnitRange& units = pipeline().units(slot.chunk);
    for (int u = units.end - 1; u >= units.begin; --u) {
      if (context_.phases(u).weight_gradient.instructions.empty()) continue;
      run(u, slot, Pass::weight_gradient);
    }
  }

  void count_turns(const std::vector<Slot>& work) {
    const auto chunks = static_cast<size_t>(pipeline().chunks());
    std::vector<Lives> kept(chunks, Lives(micro_batches_));
    Lives batches(micro_batches_);
    for (size_t i = 0; i < work.size(); ++i) {
      const Slot& slot = work[i];
      const auto c = static_cast<size_t>(slot.chunk);
      kept[c].touch(slot.micro_batch, static_cast<int>(i));
      batches.touch(slot.micro_batch, static_cast<int>(i));
    }
    for (const Lives& lives : kept) result_.kept.push_back(lives.turns());
    // One more, so that the next descriptor is there before the last one is done with.
    result_.batches = std::min(micro_batches_, batches.turns() + 1);
  }

  const LoweringContext& context_;
  bool train_;
  int micro_batches_;
  StepEvents result_;
};

}  // namespace

StepEvents list_events(const LoweringContext& context, bool train, int micro_batches) {
  return Lister(context, train, micro_batches).run();
}

}  // namespace trireme::plan
