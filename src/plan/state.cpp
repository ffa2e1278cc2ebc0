#include "plan/state.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/math.h"
#include "ops/control.h"

namespace trireme::plan {

namespace {

class StateMaker {
 public:
  explicit StateMaker(const StateRequest& request)
      : request_(request), sharding_(*request.sharding) {}

  State run() {
    state_.masters = request_.masters;
    state_.moments = request_.moments;
    for (const ParameterGroup& group : request_.groups->groups) add_group(group);
    assign_pools();
    add_scalars();
    return std::move(state_);
  }

 private:
  int32_t add(const std::string& name, Owner owner, int64_t bytes, Space space = Space::device) {
    state_.buffers.push_back({name, owner, space, bytes, true, -1});
    return static_cast<int32_t>(state_.buffers.size()) - 1;
  }

  void add_group(const ParameterGroup& group) {
    const bool spread = sharding_.shard_ranks > 1;
    const auto elements = [&](bool whole) { return whole ? group.size : group.slice; };
    GroupState s;
    s.value_whole = !spread || sharding_.stage < 3 || group.key.persistent;
    s.optimizer_whole = !spread || sharding_.stage == 0;
    s.gradient_whole = !spread || sharding_.stage == 0 || !sharding_.reduce_each_micro_batch;
    s.value = add("weight." + group.name, Owner::weights,
                  elements(s.value_whole) * size_of(request_.compute));
    if (group.key.trainable) {
      const int64_t owned = elements(s.optimizer_whole);
      if (request_.compute != request_.masters) {
        s.remainder = add("remainder." + group.name, Owner::masters, owned * 2);
      }
      if (request_.optimizer == config::Optimizer::adamw) {
        const int64_t bytes = owned * size_of(request_.moments);
        s.exp_avg = add("exp_avg." + group.name, Owner::moments, bytes);
        s.exp_avg_sq = add("exp_avg_sq." + group.name, Owner::moments, bytes);
      }
      s.gradient = add("gradient." + group.name, Owner::gradients, elements(s.gradient_whole) * 4);
    }
    state_.groups.push_back(s);
  }

  /// Groups of one size take turns in a few slots; a tied group has slots of its own.
  PoolPlace place(std::vector<Pool>& pools, std::map<std::pair<int64_t, int>, int32_t>& known,
                  std::map<int32_t, int32_t>& members, const ParameterGroup& group,
                  int64_t element_size, int64_t max_slots, const std::string& name) {
    const std::pair<int64_t, int> key{group.size, group.key.tied};
    const auto [at, fresh] = known.try_emplace(key, static_cast<int32_t>(pools.size()));
    if (fresh) pools.push_back({name, group.size * element_size, 0});
    Pool& pool = pools[static_cast<size_t>(at->second)];
    const int32_t member = members[at->second]++;
    pool.slots = static_cast<int32_t>(std::min<int64_t>(member + 1, max_slots));
    return {at->second, member};
  }

  void assign_pools() {
    std::map<std::pair<int64_t, int>, int32_t> weight_pools;
    std::map<std::pair<int64_t, int>, int32_t> gradient_pools;
    std::map<int32_t, int32_t> weight_members;
    std::map<int32_t, int32_t> gradient_members;
    for (size_t g = 0; g < state_.groups.size(); ++g) {
      const ParameterGroup& group = request_.groups->groups[g];
      GroupState& s = state_.groups[g];
      if (!s.value_whole) {
        s.weight_slot = place(state_.weight_pools, weight_pools, weight_members, group,
                              size_of(request_.compute), sharding_.weight_slots, group.name);
      }
      if (group.key.trainable && sharding_.shard_ranks > 1 && sharding_.reduce_each_micro_batch) {
        s.gradient_slot = place(state_.gradient_pools, gradient_pools, gradient_members, group, 4,
                                sharding_.gradient_slots, group.name);
      }
    }
    for (GroupState& s : state_.groups) {  // members become slots once the pools are full
      if (s.weight_slot.used()) {
        s.weight_slot.slot %= state_.weight_pools[static_cast<size_t>(s.weight_slot.pool)].slots;
      }
      if (s.gradient_slot.used()) {
        s.gradient_slot.slot %=
            state_.gradient_pools[static_cast<size_t>(s.gradient_slot.pool)].slots;
      }
    }
  }

  void add_scalars() {
    const auto f64 = [](int64_t count) { return count * size_of(DType::f64); };
    state_.control = add("control", Owner::control, f64(ops::kControlSize));
    state_.control_host =
        add("control.host", Owner::control, f64(ops::kControlSize), Space::pinned);
    state_.schedule = add("schedule", Owner::control, f64(request_.schedule_entries));
    state_.rope_table = add("rope_table", Owner::control,
                            request_.rope_positions * request_.model->config.head_dim * 4);
    state_.sums = add("sums", Owner::control, f64(ops::kNumSums));
    state_.eval_sums = add("eval_sums", Owner::control, f64(2));
    if (request_.mesh->layout.world_size() > 1) {
      state_.world_sums = add("world_sums", Owner::control, f64(ops::kNumSums));
      state_.eval_world_sums = add("eval_world_sums", Owner::control, f64(2));
    } else {
      state_.world_sums = state_.sums;
      state_.eval_world_sums = state_.eval_sums;
    }
    state_.eval_host = add("eval_sums.host", Owner::control, f64(2), Space::pinned);
  }

  const StateRequest& request_;
  const Sharding& sharding_;
  State state_;
};

}  // namespace

State make_state(const StateRequest& request) { return StateMaker(request).run(); }

}  // namespace trireme::plan
