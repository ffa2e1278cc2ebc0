// What a run takes: bytes of each rank's arenas, bytes read at load, operations for ragged samples.
#include <gtest/gtest.h>

#include <mutex>

#include "checkpoint/hf_export.h"
#include "cpu/inproc.h"
#include "cpu/op_table.h"
#include "null/device.h"
#include "ops/signature.h"
#include "support/backends.h"
#include "support/null_plan.h"
#include "support/rig.h"
#include "support/source_folder.h"
#include "support/temp_folder.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

// Memory -------------------------------------------------------------------------------------

int64_t row(const plan::Plan& plan, std::string_view owner) {
  int64_t bytes = 0;
  for (const plan::MemoryRow& r : plan::memory_table(plan)) {
    if (r.space == plan::Space::device && r.owner == owner) bytes += r.bytes;
  }
  return bytes;
}

/// 16 bytes a parameter over four ranks, two slots of each kind for the blocks, one for the
/// embedding and the head, and what a single process needs beside its state.
TEST(Memory, ZeroThreeHoldsItsShare) {
  if (max_ranks() < 4) GTEST_SKIP() << "more ranks than GPUs";
  const data::Dataset dataset = random_dataset(std::vector<int64_t>(16, 24), 512, 5);
  RigOptions options;
  options.model = tiny_model({.hidden = 64,
                              .layers = 8,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 16,
                              .ffn = 192,
                              .vocab = 512});
  options.dataset = &dataset;
  options.steps = 2;
  options.final_state = false;
  options.config.bf16 = true;
  options.config.per_device_train_batch_size = 1;
  options.config.gradient_accumulation_steps = 2;
  options.config.max_steps = 2;
  options.source = [model = options.model] {
    return std::make_unique<train::RandomSource>(model.config, 1);
  };
  std::mutex mutex;
  int64_t state = 0;
  int64_t slots = 0;
  int64_t staging = 0;
  options.before_step = [&](train::Session& session, int, int64_t) {
    const std::lock_guard lock(mutex);
    const plan::Plan& plan = session.plan();
    state =
        row(plan, "weights") + row(plan, "masters") + row(plan, "moments") + row(plan, "gradients");
    slots = row(plan, "weight slots") + row(plan, "gradient slots");
    staging = row(plan, "staging");
  };
  const RigResult alone = train(options);
  const auto device = static_cast<size_t>(device::Space::device);
  const int64_t whole_state = 16 * options.model.num_parameters();
  EXPECT_GE(state, whole_state);
  EXPECT_LE(state, whole_state * 101 / 100);
  EXPECT_EQ(slots, 0);
  const int64_t beside = alone.allocated[device] - state;

  options.ranks = 4;
  options.config.zero.stage = 3;
  const RigResult shared = train(options);
  EXPECT_LE(state, whole_state / 4 * 104 / 100);  // slices end at multiples of 128 elements
  int64_t block = 0;
  for (const auto& slot : options.model.units[1].parameters) {
    for (int id : slot) block += options.model.parameters[static_cast<size_t>(id)].size();
  }
  const int64_t ends = 2 * 512 * 64;
  const int64_t slots_bound = (2 + 4) * (2 * block + ends) * 105 / 100;
  EXPECT_LE(slots, slots_bound);
  EXPECT_GT(slots, 0);
  EXPECT_LE(shared.allocated[device], whole_state / 4 * 104 / 100 + slots_bound + beside + staging);
  EXPECT_EQ(shared.planned, shared.allocated);
  std::printf("state %.1f KiB of %.1f, slots %.1f KiB, allocated %.1f KiB of %.1f alone\n",
              state / 1024.0, whole_state / 1024.0, slots / 1024.0,
              shared.allocated[device] / 1024.0, alone.allocated[device] / 1024.0);
}

// Operations ---------------------------------------------------------------------------------

class NoPorts final : public exec::PortHandler {
  void handle(const plan::Port&, std::byte*, int64_t, int32_t) override {}
};

struct Counted {
  double attention = 0;
  double all = 0;
};

/// Operations that a training step launches for one micro-batch of these lengths.
Counted launched_flops(const model::ModelGraph& model, const std::vector<int64_t>& lengths) {
  ops::Extent extent{0, std::ssize(lengths), 0};
  double pairs = 0;
  for (int64_t length : lengths) {
    extent.tokens += length;
    extent.longest = std::max(extent.longest, length);
    pairs += static_cast<double>(cpu::attention_pairs(length, model.config.sliding_window));
  }
  extent.tokens = (extent.tokens + 15) / 16 * 16;
  NullPlanOptions options;
  options.model = model;
  options.capacity = extent;
  const plan::Plan plan = null_plan(options);
  null::Device device;
  cpu::InProcessWorld world(1);
  const auto communicator = world.join(0);
  NoPorts ports;
  exec::Executor executor(plan, device, *communicator, ports, {});
  executor.run(plan.train.at(1), std::vector{extent}, 0);
  Counted counted;
  for (const null::Launch& launch : device.launches()) {
    const auto* call = std::get_if<ops::OpCall>(&launch.what);
    if (call == nullptr) continue;
    const double flops = ops::flops(*call, pairs);
    counted.all += flops;
    const bool attends =
        call->kind == ops::OpKind::attention || call->kind == ops::OpKind::attention_input_grad;
    if (attends) counted.attention += flops;
  }
  return counted;
}

/// By the formulas: 6 operations a weight and token, 14 a head, pair and element of it.
Counted exact_flops(const model::ModelGraph& model, const std::vector<int64_t>& lengths) {
  double tokens = 0;
  double pairs = 0;
  for (int64_t length : lengths) {
    tokens += static_cast<double>(length);
    pairs += ops::visible_pairs(static_cast<double>(length), model.config.sliding_window);
  }
  double matrices = 0;
  for (const model::Parameter& parameter : model.parameters) {
    if (parameter.shape.size() == 2 && parameter.name.find("embed") == std::string::npos) {
      matrices += static_cast<double>(parameter.size());
    }
  }
  const model::ModelConfig& c = model.config;
  Counted exact;
  exact.attention = 14.0 * static_cast<double>(c.num_layers * c.num_heads * c.head_dim) * pairs;
  exact.all = exact.attention + 6.0 * matrices * tokens;
  return exact;
}

class Operations : public ::testing::TestWithParam<int64_t> {};

TEST_P(Operations, RaggedSamplesAreNotPaidForTwice) {
  // Small enough for attention to be a good part, large enough for products to be the rest.
  const model::ModelGraph model = tiny_model({.hidden = 512,
                                              .layers = 2,
                                              .heads = 8,
                                              .kv_heads = 2,
                                              .head_dim = 64,
                                              .ffn = 1536,
                                              .vocab = 4096,
                                              .window = GetParam()});
  std::vector<int64_t> lengths = {4096};
  lengths.insert(lengths.end(), 8, 64);
  for (const std::vector<int64_t>& set :
       {lengths, std::vector<int64_t>{4096}, std::vector<int64_t>{700, 1, 33, 1290, 250, 250}}) {
    const Counted counted = launched_flops(model, set);
    const Counted exact = exact_flops(model, set);
    std::printf("%zu samples: attention %.3f, all %.3f of exact; attention is %.0f %%\n",
                set.size(), counted.attention / exact.attention, counted.all / exact.all,
                100 * exact.attention / exact.all);
    EXPECT_GE(counted.all, exact.all);
    EXPECT_LE(counted.all, 1.07 * exact.all);
    EXPECT_LE(counted.attention, 1.07 * exact.attention);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, Operations, ::testing::Values(0, 1024));

// Loading ------------------------------------------------------------------------------------

/// A model folder whose reads are counted.
class CountedSource final : public train::StateSource {
 public:
  struct Totals {
    std::mutex mutex;
    int64_t boxes = 0;  // bytes of what was asked for, as the file holds them
    int64_t read = 0;
    double worst = 0;  // of one rank: read / boxes
  };
  CountedSource(const std::filesystem::path& folder, const model::ModelGraph& model,
                int64_t element_bytes, Totals& totals)
      : source_(folder, model), element_bytes_(element_bytes), totals_(totals) {}
  ~CountedSource() override {
    const std::lock_guard lock(totals_.mutex);
    totals_.boxes += boxes_;
    totals_.read += source_.bytes_read();
    totals_.worst = std::max(
        totals_.worst, static_cast<double>(source_.bytes_read()) / static_cast<double>(boxes_));
  }
  bool only_weights() const override { return source_.only_weights(); }
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) override {
    boxes_ += box.size() * element_bytes_;
    source_.read(parameter, plane, box, out);
  }
  void read_control(std::span<double> control) override { source_.read_control(control); }

 private:
  train::FolderSource source_;
  int64_t element_bytes_;
  Totals& totals_;
  int64_t boxes_ = 0;
};

TEST(Loading, EachRankReadsItsBoxes) {
  const std::filesystem::path golden = source_folder() / "tests/golden/data/qwen2";
  const model::ModelGraph model = model::build_model(model::read_model_config(golden));
  const data::Dataset dataset = random_dataset({4, 4, 4, 4}, 64, 5);
  // The same model once more, in bf16.
  const test::TempFolder narrow;
  std::vector<model::TensorSpec> tensors;
  for (const model::Parameter& parameter : model.parameters) {
    tensors.push_back({parameter.name, DType::bf16, parameter.shape});
  }
  checkpoint::HfWriter writer(narrow.path(), tensors);
  train::FolderSource original(golden, model);
  for (const model::Parameter& parameter : model.parameters) {
    std::vector<float> whole(static_cast<size_t>(parameter.size()));
    original.read(parameter, plan::Plane::master, mesh::whole(parameter.shape), whole.data());
    writer.append(whole.data(), parameter.size());
  }
  writer.finish();

  for (int ranks = 1; ranks <= std::min(4, max_ranks()); ++ranks) {
    for (int stage : {0, 3}) {
      for (bool bf16 : {false, true}) {
        SCOPED_TRACE("ranks " + std::to_string(ranks) + " stage " + std::to_string(stage));
        CountedSource::Totals totals;
        RigOptions options;
        options.model = model;
        options.dataset = &dataset;
        options.ranks = ranks;
        options.steps = 1;
        options.final_state = false;
        options.config.max_steps = 1;
        options.config.per_device_train_batch_size = 1;
        options.config.zero.stage = stage;
        options.source = [&] {
          return std::make_unique<CountedSource>(bf16 ? narrow.path() : golden, model, bf16 ? 2 : 4,
                                                 totals);
        };
        train(options);
        EXPECT_LE(totals.worst, 1.05);
        EXPECT_GE(totals.worst, 1.0);
        // All ranks together read the file once.
        EXPECT_EQ(totals.boxes, model.num_parameters() * (bf16 ? 2 : 4));
      }
    }
  }
}

}  // namespace
}  // namespace trireme::testing
