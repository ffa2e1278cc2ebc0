#include "plan/groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/math.h"

namespace trireme::plan {

namespace {

using model::ModelGraph;
using model::Parameter;
using model::Unit;

/// Units that use each parameter.
std::vector<std::vector<int>> users_of(const ModelGraph& model) {
  std::vector<std::vector<int>> users(model.parameters.size());
  for (int u = 0; u < model.num_units(); ++u) {
    for (const auto& slot : model.units[static_cast<size_t>(u)].parameters) {
      for (int id : slot) {
        auto& list = users[static_cast<size_t>(id)];
        if (list.empty() || list.back() != u) list.push_back(u);
      }
    }
  }
  return users;
}

class GroupMaker {
 public:
  explicit GroupMaker(const GroupRequest& request)
      : request_(request), model_(request.part->model), users_(users_of(model_)) {
    result_.shard_ranks = request.shard_ranks;
    result_.places.resize(model_.units.size());
  }

  Groups run() {
    for (int u : request_.units) place_unit(u);
    for (ParameterGroup& group : result_.groups) {
      group.size = round_up(group.size, result_.shard_ranks * kSliceAlignment);
      group.slice = div_exact(group.size, result_.shard_ranks);
    }
    return std::move(result_);
  }

 private:
  const LocalTensor& local(int id) const {
    return request_.part->tensors[static_cast<size_t>(id)];
  }

  ClassKey class_of(const std::vector<int>& slot) const {
    ClassKey key;
    const Parameter& first = model_.parameters[static_cast<size_t>(slot[0])];
    key.tensor_sum = local(slot[0]).sum == SumGroup::tensor;
    key.trainable = first.trainable;
    key.persistent = true;
    for (int id : slot) {
      key.persistent &= model_.parameters[static_cast<size_t>(id)].size() <=
                        request_.persistence_threshold;
      if (users_[static_cast<size_t>(id)].size() > 1) key.tied = slot[0];
    }
    return key;
  }

  /// Slots with weight decay first, so that a slice has few segments.
  std::vector<size_t> storage_order(const Unit& unit) const {
    std::vector<size_t> order(unit.parameters.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_partition(order.begin(), order.end(), [&](size_t slot) {
      return model_.parameters[static_cast<size_t>(unit.parameters[slot][0])].decay;
    });
    return order;
  }

  void place_unit(int u) {
    const Unit& unit = model_.units[static_cast<size_t>(u)];
    auto& places = result_.places[static_cast<size_t>(u)];
    places.resize(unit.parameters.size());
    std::map<ClassKey, int> group_of;
    for (size_t slot : storage_order(unit)) {
      const std::vector<int>& ids = unit.parameters[slot];
      if (const auto known = tied_places_.find(ids[0]); known != tied_places_.end()) {
        places[slot] = known->second;
        continue;
      }
      const ClassKey key = class_of(ids);
      auto [at, fresh] = group_of.try_emplace(key, static_cast<int>(result_.groups.size()));
      if (fresh) add_group(unit.name, u, key);
      places[slot] = place_slot(at->second, ids);
      if (users_[static_cast<size_t>(ids[0])].size() > 1 || repeated(unit, ids[0])) {
        tied_places_[ids[0]] = places[slot];
      }
    }
  }

  /// A tensor bound to several slots of one unit is stored once.
  static bool repeated(const Unit& unit, int id) {
    return std::count_if(unit.parameters.begin(), unit.parameters.end(),
                         [&](const auto& slot) { return slot[0] == id; }) > 1;
  }

  void add_group(const std::string& unit_name, int u, const ClassKey& key) {
    ParameterGroup group;
    group.name = unit_name;
    if (key.tied >= 0) group.name += ".tied";
    if (key.tensor_sum) group.name += ".replicated";
    if (key.persistent) group.name += ".persistent";
    if (!key.trainable) group.name += ".frozen";
    group.unit = u;
    group.key = key;
    result_.groups.push_back(std::move(group));
  }

  SlotPlace place_slot(int index, const std::vector<int>& ids) {
    ParameterGroup& group = result_.groups[static_cast<size_t>(index)];
    group.size = round_up(group.size, kSlotAlignment);
    const SlotPlace place{index, group.size};
    for (int id : ids) {
      const LocalTensor& tensor = local(id);
      // A tensor of both ends of a pipeline counts at the first.
      const int first_user = users_[static_cast<size_t>(id)].front();
      const bool here =
          std::binary_search(request_.units.begin(), request_.units.end(), first_user);
      group.placed.push_back({id, group.size, tensor.box.size(), tensor.box, tensor.sum,
                              tensor.counted && here});
      group.size += tensor.stored;
    }
    return place;
  }

  const GroupRequest& request_;
  const ModelGraph& model_;
  std::vector<std::vector<int>> users_;
  std::map<int, SlotPlace> tied_places_;
  Groups result_;
};

}  // namespace

Groups make_groups(const GroupRequest& request) { return GroupMaker(request).run(); }

std::vector<Segment> segments(const ModelGraph& model, const ParameterGroup& group, int64_t begin,
                              int64_t end, bool join) {
  std::vector<Segment> found;
  for (const Placed& placed : group.placed) {
    const Segment part{std::max(begin, placed.offset), std::min(end, placed.offset + placed.size),
                       model.parameters[static_cast<size_t>(placed.parameter)].decay,
                       placed.counted, &placed};
    if (part.begin >= part.end) continue;
    if (join && !found.empty() && found.back().end == part.begin &&
        found.back().decay == part.decay && found.back().counted == part.counted) {
      found.back().end = part.end;
    } else {
      found.push_back(part);
    }
  }
  return found;
}

std::vector<HeldBox> held_boxes(const ParameterGroup& group, int64_t begin, int64_t end) {
  std::vector<HeldBox> found;
  for (const Placed& placed : group.placed) {
    const int64_t first = std::max(begin, placed.offset);
    const int64_t last = std::min(end, placed.offset + placed.size);
    if (first >= last) continue;
    int64_t offset = first;
    for (mesh::Box& box :
         mesh::boxes_of_range(placed.box, first - placed.offset, last - placed.offset)) {
      const int64_t size = box.size();
      found.push_back({placed.parameter, std::move(box), offset, placed.counted});
      offset += size;
    }
  }
  return found;
}

}  // namespace trireme::plan
