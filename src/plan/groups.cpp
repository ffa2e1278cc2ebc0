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
  GroupMaker(const ModelGraph& model, int64_t shard_ranks, int64_t persistence_threshold)
      : model_(model), threshold_(persistence_threshold), users_(users_of(model)) {
    result_.shard_ranks = shard_ranks;
    result_.places.resize(model.units.size());
  }

  Groups run() {
    for (int u = 0; u < model_.num_units(); ++u) place_unit(u);
    for (ParameterGroup& group : result_.groups) {
      group.size = round_up(group.size, result_.shard_ranks * kSliceAlignment);
      group.slice = div_exact(group.size, result_.shard_ranks);
    }
    return std::move(result_);
  }

 private:
  ClassKey class_of(const std::vector<int>& slot) const {
    ClassKey key;
    const Parameter& first = model_.parameters[static_cast<size_t>(slot[0])];
    key.trainable = first.trainable;
    key.persistent = true;
    for (int id : slot) {
      key.persistent &= model_.parameters[static_cast<size_t>(id)].size() <= threshold_;
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
      const int64_t size = model_.parameters[static_cast<size_t>(id)].size();
      group.placed.push_back({id, group.size, size});
      group.size += size;
    }
    return place;
  }

  const ModelGraph& model_;
  int64_t threshold_;
  std::vector<std::vector<int>> users_;
  std::map<int, SlotPlace> tied_places_;
  Groups result_;
};

}  // namespace

Groups make_groups(const ModelGraph& model, int64_t shard_ranks, int64_t persistence_threshold) {
  return GroupMaker(model, shard_ranks, persistence_threshold).run();
}

std::vector<Segment> segments(const ModelGraph& model, const ParameterGroup& group, int64_t begin,
                              int64_t end) {
  std::vector<Segment> found;
  for (const Placed& placed : group.placed) {
    const Segment part{std::max(begin, placed.offset), std::min(end, placed.offset + placed.size),
                       model.parameters[static_cast<size_t>(placed.parameter)].decay};
    if (part.begin >= part.end) continue;
    if (!found.empty() && found.back().end == part.begin && found.back().decay == part.decay) {
      found.back().end = part.end;
    } else {
      found.push_back(part);
    }
  }
  return found;
}

std::vector<HeldBox> held_boxes(const ModelGraph& model, const ParameterGroup& group, int64_t begin,
                                int64_t end) {
  std::vector<HeldBox> found;
  for (const Placed& placed : group.placed) {
    const int64_t first = std::max(begin, placed.offset);
    const int64_t last = std::min(end, placed.offset + placed.size);
    if (first >= last) continue;
    const auto& shape = model.parameters[static_cast<size_t>(placed.parameter)].shape;
    int64_t offset = first;
    for (mesh::Box& box :
         mesh::boxes_of_range(mesh::whole(shape), first - placed.offset, last - placed.offset)) {
      const int64_t size = box.size();
      found.push_back({placed.parameter, std::move(box), offset});
      offset += size;
    }
  }
  return found;
}

}  // namespace trireme::plan
