// State kept as bf16: its bytes, and where each element's random bits come from.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/null_plan.h"
#include "train/tiny.h"

namespace trireme::testing {
namespace {

using config::Precision;

NullPlanOptions options_of(int64_t ranks, int stage) {
  NullPlanOptions options;
  options.model = train::tiny_model({.layers = 3, .tied = true});
  options.config.bf16 = true;
  options.config.master_dtype = Precision::bfloat16;
  options.config.moment_dtype = Precision::bfloat16;
  options.config.zero.stage = stage;
  options.ranks = ranks;
  return options;
}

int64_t bytes_of(const plan::Plan& plan, plan::Owner owner) {
  int64_t bytes = 0;
  for (const plan::Buffer& buffer : plan.state.buffers) {
    if (buffer.owner == owner) bytes += buffer.bytes;
  }
  return bytes;
}

TEST(StateTypes, BytesOfAParameter) {
  NullPlanOptions options = options_of(1, 0);
  int64_t elements = 0;
  for (const plan::ParameterGroup& group : null_plan(options).groups.groups) elements += group.size;
  const auto expect_bytes = [&](int64_t remainder, int64_t moments) {
    const plan::Plan plan = null_plan(options);
    EXPECT_EQ(bytes_of(plan, plan::Owner::weights), 2 * elements);
    EXPECT_EQ(bytes_of(plan, plan::Owner::masters), remainder * elements);
    EXPECT_EQ(bytes_of(plan, plan::Owner::moments), moments * elements);
    EXPECT_EQ(bytes_of(plan, plan::Owner::gradients), 4 * elements);
  };
  expect_bytes(0, 4);
  options.config.master_dtype = Precision::float32;
  expect_bytes(2, 4);
  options.config.moment_dtype = Precision::float32;
  expect_bytes(2, 8);
  options.config.master_dtype = Precision::bfloat16;
  expect_bytes(0, 8);
}

/// (stream, element) of every element of a parameter that some rank updates.
using Place = std::pair<uint64_t, int64_t>;
using Places = std::map<std::string, std::vector<Place>>;

void add_places(const plan::Plan& plan, Places* places) {
  for (const plan::FlatOp& op : plan.flush.ops) {
    if (op.op != ops::OpKind::adamw) continue;
    const plan::Span& value = op.args[0];
    for (size_t g = 0; g < plan.state.groups.size(); ++g) {
      const plan::GroupState& state = plan.state.groups[g];
      if (state.value != value.buffer) continue;
      const plan::ParameterGroup& group = plan.groups.groups[g];
      const int64_t base = state.value_whole ? 0 : group.slice * plan.sharding.shard_rank;
      const int64_t begin = base + value.offset / 2;
      for (const plan::Placed& placed : group.placed) {
        if (begin < placed.offset || begin >= placed.offset + placed.size) continue;
        auto& all = (*places)[plan.model.parameters[static_cast<size_t>(placed.parameter)].name];
        all.resize(static_cast<size_t>(placed.size));
        for (int64_t i = 0; i < value.count; ++i) {
          Place& place = all[static_cast<size_t>(begin - placed.offset + i)];
          const Place mine{op.attributes.rounding_stream, op.attributes.first_element + i};
          EXPECT_TRUE(place == Place() || place == mine);  // copies agree
          place = mine;
        }
      }
    }
  }
}

Places places_of(NullPlanOptions options) {
  Places places;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    add_places(null_plan(options), &places);
  }
  return places;
}

TEST(StateTypes, RandomBitsBelongToTheElementWhateverTheLayout) {
  const Places alone = places_of(options_of(1, 0));
  ASSERT_EQ(alone.size(), options_of(1, 0).model.parameters.size());
  std::map<uint64_t, std::string> owners;
  for (const auto& [name, places] : alone) {
    EXPECT_TRUE(owners.emplace(places[0].first, name).second) << name << " shares a stream";
    for (size_t i = 0; i < places.size(); ++i) {
      ASSERT_EQ(places[i], (Place{places[0].first, static_cast<int64_t>(i)})) << name;
    }
  }
  for (const int64_t ranks : {2, 3, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      NullPlanOptions options = options_of(ranks, stage);
      options.config.zero.sub_group_size = ranks == 3 ? 777 : 100000;
      options.config.zero.param_persistence_threshold = ranks == 2 ? 100 : 0;
      EXPECT_EQ(places_of(options), alone) << ranks << " ranks, stage " << stage;
    }
  }
  NullPlanOptions hybrid = options_of(4, 3);
  hybrid.config.shard_group_size = 2;
  EXPECT_EQ(places_of(hybrid), alone);
  NullPlanOptions stages = options_of(2, 1);
  stages.config.pipeline_parallel_size = 2;
  EXPECT_EQ(places_of(stages), alone);  // also of the tied ends

  NullPlanOptions other = options_of(1, 0);
  other.config.seed = 43;
  EXPECT_NE(places_of(other), alone);
}

/// A tensor that every tensor rank has whole is rounded alike; parts have streams of their own.
TEST(StateTypes, TensorRanksRoundTheirParts) {
  NullPlanOptions options = options_of(2, 0);
  options.model = train::tiny_model({.layers = 2, .heads = 4, .kv_heads = 1, .head_dim = 8});
  options.config.tensor_parallel_size = 2;
  Places first;
  Places second;
  add_places(null_plan(options), &first);
  options.rank = 1;
  add_places(null_plan(options), &second);
  for (const auto& [name, places] : first) {
    const bool whole = name.ends_with("norm.weight") || name.find("k_proj") != std::string::npos ||
                       name.find("v_proj") != std::string::npos;
    EXPECT_EQ(second.at(name) == places, whole) << name;
  }
}

}  // namespace
}  // namespace trireme::testing
