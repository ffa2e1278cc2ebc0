#include "support/odd_models.h"

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "model/graph_builder.h"

namespace trireme::testing {

using model::Dim;
using model::GraphBuilder;
using model::Init;
using model::ModelGraph;
using model::Recompute;
using model::Unit;
using model::UnitGraph;

model::ModelConfig odd_config() {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.hidden_size = 24;
  config.num_layers = 3;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.intermediate_size = 20;
  config.vocab_size = 53;
  config.max_position_embeddings = 512;
  return config;
}

namespace {

/// Binds parameters of its own to every slot of a kind, or those of an earlier unit.
class UnitMaker {
 public:
  UnitMaker(ModelGraph& model, std::string name, int kind) : model_(model) {
    unit_.name = std::move(name);
    unit_.kind = kind;
  }

  int slot(bool trainable) {
    const model::Slot& slot = kind().slots[unit_.parameters.size()];
    model::Parameter parameter;
    parameter.name = unit_.name + "." + slot.name;
    parameter.shape = {model_.dims[slot.rows], model_.dims[slot.cols]};
    if (slot.rows == Dim::one) {
      parameter.shape.erase(parameter.shape.begin());
      parameter.init = slot.name.ends_with("bias") ? Init::zeros : Init::ones;
      parameter.decay = false;
    }
    parameter.trainable = trainable;
    model_.parameters.push_back(std::move(parameter));
    share(static_cast<int>(model_.parameters.size()) - 1);
    return unit_.parameters.back()[0];
  }
  void share(int parameter) { unit_.parameters.push_back({parameter}); }
  bool complete() const { return unit_.parameters.size() == kind().slots.size(); }
  const std::string& next_slot() const { return kind().slots[unit_.parameters.size()].name; }
  void finish() { model_.units.push_back(std::move(unit_)); }

 private:
  const UnitGraph& kind() const { return model_.kinds[static_cast<size_t>(unit_.kind)]; }
  ModelGraph& model_;
  Unit unit_;
};

UnitGraph embedding_graph(const model::ModelConfig& config) {
  GraphBuilder b("embedding", config);
  const int table = b.slot("table", Dim::vocab, Dim::hidden);
  return b.finish(b.leave(b.embedding(table)));
}

UnitGraph head_graph(const model::ModelConfig& config) {
  GraphBuilder b("head", config);
  const int norm = b.slot("norm", Dim::one, Dim::hidden);
  const int vocab = b.slot("vocab", Dim::vocab, Dim::hidden);
  b.loss(b.enter(b.rms_norm(b.input(), norm)), vocab);
  return b.finish(-1);
}

UnitGraph parallel_graph(const model::ModelConfig& config, bool two_slots) {
  GraphBuilder b("parallel", config);
  const int norm = b.slot("norm", Dim::one, Dim::hidden);
  const int qkv = b.slot("qkv", Dim::qkv, Dim::hidden);
  const int qkv_bias = b.slot("qkv.bias", Dim::one, Dim::qkv);
  const int o = b.slot("o", Dim::hidden, Dim::q);
  const int gate_up = b.slot("gate_up", Dim::gate_up, Dim::hidden);
  const int down = b.slot("down", Dim::hidden, Dim::ffn);
  const int mix = b.slot("mix", Dim::hidden, Dim::hidden);
  const int again = two_slots ? b.slot("again", Dim::hidden, Dim::hidden) : mix;

  const int x = b.input();
  const int y = b.enter(b.rms_norm(x, norm));
  const int rotated = b.rope(b.linear("qkv", y, qkv, qkv_bias, Dim::qkv, Recompute::qkv));
  const int attended =
      b.leave(b.linear("o", b.attention(rotated), o, -1, Dim::hidden, Recompute::attention));
  const int inner = b.swiglu(b.linear("gate_up", y, gate_up, -1, Dim::gate_up, Recompute::ffn));
  const int fed = b.leave(b.linear("down", inner, down, -1, Dim::hidden, Recompute::ffn));
  const int mixed = b.linear("mix", y, mix, -1, Dim::hidden, Recompute::ffn);
  const int twice = b.linear("again", mixed, again, -1, Dim::hidden, Recompute::block);
  return b.finish(b.add("x3", b.add("x2", b.add("x1", x, attended), fed), twice));
}

UnitGraph plain_graph(const model::ModelConfig& config) {
  GraphBuilder b("plain", config);
  const int norm = b.slot("norm", Dim::one, Dim::hidden);
  const int gate_up = b.slot("gate_up", Dim::gate_up, Dim::hidden);
  const int down = b.slot("down", Dim::hidden, Dim::ffn);
  const int down_bias = b.slot("down.bias", Dim::one, Dim::hidden);
  const int x = b.input();
  const int inner =
      b.swiglu(b.linear("gate_up", b.rms_norm(x, norm), gate_up, -1, Dim::gate_up, Recompute::ffn));
  return b.finish(
      b.add("x1", x, b.linear("down", inner, down, down_bias, Dim::hidden, Recompute::ffn)));
}

ModelGraph empty_model(std::vector<UnitGraph> blocks) {
  ModelGraph model;
  model.config = odd_config();
  model.dims = dims_of(model.config);
  model.kinds.push_back(embedding_graph(model.config));
  for (UnitGraph& block : blocks) model.kinds.push_back(std::move(block));
  model.kinds.push_back(head_graph(model.config));
  return model;
}

}  // namespace

ModelGraph parallel_model(const ParallelModel& spec) {
  const model::ModelConfig config = odd_config();
  ModelGraph model = empty_model({parallel_graph(config, spec.two_slots), plain_graph(config)});
  const bool body = !spec.frozen_body;

  UnitMaker embed(model, "embed", 0);
  embed.slot(body && !spec.frozen_embedding);
  embed.finish();
  int mix = -1;
  for (int i = 0; i < 3; ++i) {
    const bool plain = i == 1;
    UnitMaker block(model, "block." + std::to_string(i), plain ? 2 : 1);
    while (!block.complete()) {
      if (block.next_slot() == "again" || (block.next_slot() == "mix" && mix >= 0)) {
        block.share(mix);
        continue;
      }
      const bool is_mix = block.next_slot() == "mix";
      const int made = block.slot(body && !(plain && spec.frozen_middle));
      if (is_mix) mix = made;
    }
    block.finish();
    if (!spec.shared_mix) mix = -1;
  }
  UnitMaker head(model, "head", 3);
  while (!head.complete()) head.slot(true);
  head.finish();
  model.validate();
  return model;
}

namespace {

class RandomGraph {
 public:
  RandomGraph(const model::ModelConfig& config, uint32_t seed)
      : builder_("random", config), random_(seed) {}

  UnitGraph make(int num_nodes) {
    const int input = builder_.input();
    values_[Dim::hidden].push_back(input);
    for (int i = 0; i < num_nodes; ++i) add_node();
    // What nobody read feeds the output, beside the input: no slot is left without a gradient.
    int out = input;
    for (const auto& [value, dim] : std::map(unread_)) {
      out =
          builder_.add(name(), out, dim == Dim::hidden ? value : project(dim, value, Dim::hidden));
    }
    return builder_.finish(out);
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<uint32_t>(bound)); }
  int pick(Dim dim) {
    const auto& list = values_[dim];
    const int value = list[static_cast<size_t>(below(static_cast<int>(list.size())))];
    unread_.erase(value);
    return value;
  }
  Recompute level() { return static_cast<Recompute>(1 + below(6)); }
  std::string name() { return "v" + std::to_string(num_names_++); }

  void keep(Dim dim, int value) {
    values_[dim].push_back(value);
    unread_[value] = dim;
  }

  /// One of the slots of that shape made so far, or a new one.
  int slot(Dim rows, Dim cols, const std::string& suffix) {
    auto& known = slots_[{rows, cols, suffix}];
    if (!known.empty() && below(2) == 0) {
      return known[static_cast<size_t>(below(static_cast<int>(known.size())))];
    }
    known.push_back(builder_.slot("s" + std::to_string(num_slots_++) + suffix, rows, cols));
    return known.back();
  }

  int project(Dim from, int value, Dim to) {
    const int bias = below(2) == 0 ? slot(Dim::one, to, ".bias") : -1;
    return builder_.linear(name(), value, slot(to, from, ""), bias, to, level());
  }

  void add_node() {
    std::vector<Dim> known;
    for (const auto& [dim, list] : values_) known.push_back(dim);
    const Dim dim = known[static_cast<size_t>(below(static_cast<int>(known.size())))];
    const int value = pick(dim);
    switch (below(4)) {
      case 0:
        return keep(dim, builder_.add(name(), value, pick(dim)));
      case 1: {
        constexpr std::array kTargets = {Dim::hidden, Dim::qkv, Dim::gate_up, Dim::q, Dim::ffn};
        const Dim to = kTargets[static_cast<size_t>(below(kTargets.size()))];
        return keep(to, project(dim, value, to));
      }
      case 2:
        if (below(2) == 0) return keep(dim, builder_.enter(value));
        return keep(dim, builder_.leave(value));
      default:
        return own_operation(dim, value);
    }
  }

  /// An operation that only values of this shape have.
  void own_operation(Dim dim, int value) {
    if (dim == Dim::hidden) {
      return keep(dim, builder_.rms_norm(value, slot(Dim::one, Dim::hidden, ".gain")));
    }
    if (dim == Dim::gate_up) return keep(Dim::ffn, builder_.swiglu(value));
    if (dim == Dim::qkv && below(3) == 0) return keep(dim, builder_.rope(value));
    if (dim == Dim::qkv && below(2) == 0) {
      return keep(dim, builder_.qk_norm(value, slot(Dim::two, Dim::head_dim, ".gain")));
    }
    if (dim == Dim::qkv) return keep(Dim::q, builder_.attention(value));
    keep(dim, builder_.add(name(), value, value));
  }

  GraphBuilder builder_;
  std::mt19937 random_;
  std::map<Dim, std::vector<int>> values_;
  std::map<std::tuple<Dim, Dim, std::string>, std::vector<int>> slots_;
  std::map<int, Dim> unread_;
  int num_slots_ = 0;
  int num_names_ = 0;
};

}  // namespace

UnitGraph random_graph(const model::ModelConfig& config, uint32_t seed, int num_nodes) {
  return RandomGraph(config, seed).make(num_nodes);
}

ModelGraph random_model(uint32_t seed, int num_nodes) {
  const model::ModelConfig config = odd_config();
  ModelGraph model = empty_model(
      {random_graph(config, seed, num_nodes), random_graph(config, seed + 1, num_nodes / 2)});
  std::mt19937 random(seed);
  const auto one_in = [&](uint32_t n) { return random() % n == 0; };
  const bool tied = one_in(2);
  UnitMaker embed(model, "embed", 0);
  const int table = embed.slot(!one_in(3));
  embed.finish();
  std::map<std::pair<int, std::string>, int> earlier;
  for (int i = 0; i < 3; ++i) {
    const int kind = i == 1 ? 2 : 1;
    UnitMaker block(model, "block." + std::to_string(i), kind);
    while (!block.complete()) {
      const std::pair<int, std::string> key{kind, block.next_slot()};
      if (const auto known = earlier.find(key); known != earlier.end() && one_in(3)) {
        block.share(known->second);
      } else {
        earlier[key] = block.slot(!one_in(4));
      }
    }
    block.finish();
  }
  UnitMaker head(model, "head", 3);
  head.slot(true);
  if (tied) {
    head.share(table);
  } else {
    head.slot(!one_in(4));
  }
  head.finish();
  model.validate();
  return model;
}

}  // namespace trireme::testing
