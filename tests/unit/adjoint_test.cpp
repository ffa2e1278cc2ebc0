// Derived adjoints against finite differences, in double: every element of every slot and of the
// input, of the families' graphs and of graphs that no family has.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/graph_builder.h"
#include "support/odd_models.h"
#include "support/rig.h"
#include "support/unit_interpreter.h"

namespace trireme::testing {
namespace {

using model::Adjoint;
using model::UnitGraph;

/// Three sequences, one of a single token, and padding.
BatchFields small_batch(int64_t vocab) {
  const data::Dataset dataset = random_dataset({4, 1, 5}, vocab, 9);
  return batch_of(dataset, std::vector<int32_t>{0, 1, 2}, 4);
}

model::ModelConfig small_config(bool qkv_bias, bool other_biases) {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.hidden_size = 6;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.intermediate_size = 5;
  config.vocab_size = 11;
  config.max_position_embeddings = 64;
  config.qkv_bias = qkv_bias;
  config.output_bias = config.mlp_bias = other_biases;
  return config;
}

/// One unit with random operands; its loss is the loss sum, or the product of its output with a
/// random cotangent.
class UnitUnderTest {
 public:
  UnitUnderTest(const model::Dims& dims, const model::ModelConfig& config, const UnitGraph& graph,
                uint32_t seed = 3)
      : dims_(dims),
        graph_(graph),
        batch_(small_batch(config.vocab_size)),
        rope_table_(rope_table_of(config, 16)),
        interpreter_(dims_, rope_table_, batch_),
        start_(interpreter_.tensors(graph, graph.values)) {
    std::mt19937 random(seed);
    for (Tensor& slot : start_.slots) {
      const double scale = 1 / std::sqrt(static_cast<double>(slot.cols));
      slot = contract::random_tensor(random, slot.rows, slot.cols, scale);
    }
    if (graph.input >= 0) {
      Tensor& x = start_.values[static_cast<size_t>(graph.input)];
      x = contract::random_tensor(random, x.rows, x.cols);
    }
    if (graph.output >= 0) {
      const Tensor& y = start_.values[static_cast<size_t>(graph.output)];
      cotangent_ = contract::random_tensor(random, y.rows, y.cols);
    }
  }

  /// Gradients by the adjoint: the slots', and last the input's (empty when not asked for).
  std::vector<Tensor> gradients(const model::AdjointRequest& request) const {
    const Adjoint adjoint = derive_adjoint(graph_, request);
    UnitTensors tensors = interpreter_.tensors(graph_, adjoint.values);
    tensors.slots = start_.slots;
    if (graph_.input >= 0) {
      const auto input = static_cast<size_t>(graph_.input);
      tensors.values[input] = start_.values[input];
    }
    interpreter_.run(graph_.nodes, tensors);
    if (adjoint.output_gradient >= 0) {
      tensors.values[static_cast<size_t>(adjoint.output_gradient)] = cotangent_;
    }
    interpreter_.run(adjoint.nodes, tensors);
    std::vector<Tensor> found = tensors.slot_gradients;
    found.push_back(adjoint.input_gradient < 0
                        ? Tensor()
                        : tensors.values[static_cast<size_t>(adjoint.input_gradient)]);
    return found;
  }

  /// The same by central differences.
  std::vector<Tensor> differences() {
    std::vector<Tensor> found;
    for (Tensor& slot : start_.slots) found.push_back(differences_of(slot));
    found.push_back(graph_.input < 0
                        ? Tensor()
                        : differences_of(start_.values[static_cast<size_t>(graph_.input)]));
    return found;
  }

  model::AdjointRequest everything() const {
    return {std::vector<bool>(graph_.slots.size(), true), graph_.input >= 0};
  }

 private:
  double loss() const {
    UnitTensors tensors = start_;
    interpreter_.run(graph_.nodes, tensors);
    if (graph_.output < 0) return tensors.loss_sums.at(0);
    const Tensor& y = tensors.values[static_cast<size_t>(graph_.output)];
    double sum = 0;
    for (int64_t i = 0; i < y.size(); ++i) sum += y.at(i) * cotangent_.at(i);
    return sum;
  }

  Tensor differences_of(Tensor& operand) {
    constexpr double kStep = 1e-5;
    Tensor found(operand.rows, operand.cols);
    for (int64_t i = 0; i < operand.size(); ++i) {
      const double kept = operand.at(i);
      operand.at(i) = kept + kStep;
      const double above = loss();
      operand.at(i) = kept - kStep;
      found.at(i) = (above - loss()) / (2 * kStep);
      operand.at(i) = kept;
    }
    return found;
  }

  model::Dims dims_;
  const UnitGraph& graph_;
  BatchFields batch_;
  Tensor rope_table_;
  UnitInterpreter interpreter_;
  UnitTensors start_;
  Tensor cotangent_;
};

/// Largest |a - b| / max |b|; infinity for NaN.
double distance(const Tensor& a, const Tensor& b) {
  double worst = 0;
  double largest = 1e-9;
  for (int64_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(a.at(i) - b.at(i));
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
    largest = std::max(largest, std::abs(b.at(i)));
  }
  return worst / largest;
}

void expect_same(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                 const UnitGraph& graph, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string name = i < graph.slots.size() ? graph.slots[i].name : "the input";
    ASSERT_EQ(found[i].size(), expected[i].size()) << graph.name << ": " << name;
    EXPECT_LT(distance(found[i], expected[i]), tolerance) << graph.name << ": " << name;
  }
}

void expect_adjoint_of(const model::Dims& dims, const model::ModelConfig& config,
                       const UnitGraph& graph, uint32_t seed = 3) {
  UnitUnderTest unit(dims, config, graph, seed);
  expect_same(unit.gradients(unit.everything()), unit.differences(), graph, 1e-6);
}

struct FamilyCase {
  std::string name;
  model::ModelConfig config;
};

class Families : public ::testing::TestWithParam<FamilyCase> {
 protected:
  model::ModelGraph model_ = model::build_model(GetParam().config);
};

std::vector<FamilyCase> families() {
  model::ModelConfig qwen3 = small_config(false, false);
  qwen3.family = model::Family::qwen3;
  qwen3.qk_norm = true;
  model::ModelConfig mistral = small_config(false, false);
  mistral.family = model::Family::mistral;
  mistral.sliding_window = 2;
  return {{"qwen2", small_config(true, false)},
          {"llama", small_config(false, false)},
          {"llama_with_biases", small_config(true, true)},
          {"qwen3", qwen3},
          {"mistral", mistral}};
}

TEST_P(Families, AdjointsAreTheDerivatives) {
  for (const UnitGraph& graph : model_.kinds) {
    expect_adjoint_of(model_.dims, model_.config, graph);
    expect_adjoint_of(model_.dims, model_.config, without_boundaries(graph));
  }
}

/// Whatever is frozen, the gradients asked for stay the same and no others are made.
TEST_P(Families, PrunedAdjointsAreParts) {
  for (const UnitGraph& graph : model_.kinds) {
    const UnitUnderTest unit(model_.dims, model_.config, graph);
    const std::vector<Tensor> all = unit.gradients(unit.everything());
    const auto num_slots = graph.slots.size();
    for (uint32_t trainable = 0; trainable < (1u << num_slots); ++trainable) {
      model::AdjointRequest request;
      for (size_t s = 0; s < num_slots; ++s) request.trainable.push_back((trainable >> s) & 1u);
      for (bool input : {false, true}) {
        if (input && graph.input < 0) continue;
        request.input_gradient = input;
        const std::vector<Tensor> some = unit.gradients(request);
        for (size_t s = 0; s < num_slots; ++s) {
          const Tensor zero(all[s].rows, all[s].cols);
          EXPECT_EQ(some[s].values, (request.trainable[s] ? all[s] : zero).values)
              << graph.name << "." << graph.slots[s].name << " of " << trainable;
        }
        EXPECT_EQ(some.back().values, input ? all.back().values : std::vector<double>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Adjoint, Families, ::testing::ValuesIn(families()),
                         [](const auto& test) { return test.param.name; });

TEST(Adjoint, ParallelBlocks) {
  for (bool two_slots : {false, true}) {
    const model::ModelGraph model = parallel_model({.two_slots = two_slots});
    for (size_t kind : {1, 2}) expect_adjoint_of(model.dims, model.config, model.kinds[kind]);
  }
}

/// Values read many times, sums of sums, weights used again, in every combination.
TEST(Adjoint, RandomGraphs) {
  const model::ModelConfig config = small_config(false, false);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const UnitGraph graph = random_graph(config, seed, 2 + static_cast<int>(seed % 9));
    SCOPED_TRACE("seed " + std::to_string(seed));
    UnitUnderTest unit(dims_of(config), config, graph, seed);
    expect_same(unit.gradients(unit.everything()), unit.differences(), graph, 1e-4);
  }
}

/// A rank's part of the vocabulary: what its operations say of it reaches their gradients, through
/// the gather of statistics over ranks and their combination.
TEST(Adjoint, PartsOfAVocabulary) {
  const model::ModelConfig config = small_config(false, false);
  model::ModelGraph model = model::build_model(config);
  UnitGraph& embedding = model.kinds[0];
  embedding.nodes[0].attributes.first_vocab = 2;
  embedding.nodes[0].attributes.vocab_padding = 3;
  expect_adjoint_of(model.dims, config, embedding);

  UnitGraph& head = model.kinds[2];
  const size_t merge = head.nodes.size() - 2;
  ASSERT_EQ(head.nodes[merge].kind, model::NodeKind::merge);
  model::Node& stats = head.nodes[merge - 1];
  ASSERT_EQ(stats.op, ops::OpKind::xent_stats);
  stats.attributes.first_vocab = 2;
  stats.attributes.vocab_padding = 3;
  head.values.push_back(head.values[static_cast<size_t>(stats.args[0].id)]);
  model::Node gather = head.nodes[merge];
  gather.kind = model::NodeKind::gather;
  gather.args = {model::value_ref(static_cast<int>(head.values.size()) - 1), stats.args[0]};
  model::Node combine = head.nodes[merge];
  combine.kind = model::NodeKind::op;
  combine.op = ops::OpKind::xent_combine;
  combine.args = {combine.args[0], gather.args[0], stats.args[3]};
  head.nodes[merge] = combine;
  head.nodes.insert(head.nodes.begin() + static_cast<int64_t>(merge), gather);
  model.validate();
  expect_adjoint_of(model.dims, config, head);
}

/// The head keeps its gradient of the hidden states in the chunk loop, and blocks that end in a sum
/// pass theirs on in place.
TEST(Adjoint, GradientsTravelInPlace) {
  const model::ModelGraph model = model::build_model(small_config(true, false));
  const UnitGraph& block = model.kinds[1];
  const std::vector<bool> all(block.slots.size(), true);
  const Adjoint adjoint = derive_adjoint(block, {all, true});
  EXPECT_EQ(adjoint.input_gradient, adjoint.output_gradient);
  EXPECT_GE(adjoint.output_gradient, 0);
  const std::vector<bool> none(block.slots.size(), false);
  EXPECT_TRUE(derive_adjoint(block, {none, false}).nodes.empty());
  EXPECT_FALSE(derive_adjoint(block, {none, true}).nodes.empty());
}

}  // namespace
}  // namespace trireme::testing
