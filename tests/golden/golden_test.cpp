// Tiny models trained by Hugging Face transformers in fp32 (tests/golden/data): every step's loss
// and gradient norm, the first gradient and the final weights of every parameter must come back.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/json.h"
#include "support/backends.h"
#include "support/rig.h"
#include "support/source_folder.h"
#include "train/state_sources.h"

namespace trireme::testing {
namespace {

struct Case {
  std::string model;
  int ranks;
  int stage;
  int tp = 1;
  int pp = 1;

  int data_ranks() const { return ranks / (tp * pp); }
};

std::filesystem::path folder_of(const std::string& model) {
  return source_folder() / "tests/golden/data" / model;
}

/// One rank's share of the reference's micro-batch of two samples and accumulation of two.
config::RunConfig configure(const Json& hyper, const Case& test) {
  config::RunConfig config;
  config.learning_rate = hyper.at("learning_rate");
  config.weight_decay = hyper.at("weight_decay");
  config.adam_beta1 = hyper.at("adam_beta1");
  config.adam_beta2 = hyper.at("adam_beta2");
  config.adam_epsilon = hyper.at("adam_epsilon");
  config.max_grad_norm = hyper.at("max_grad_norm");
  config.num_train_epochs = hyper.at("num_train_epochs");
  config.warmup_steps = hyper.at("warmup_steps");
  config.lr_scheduler_type = config::Scheduler::cosine;
  config.train_sampling_strategy = config::Sampling::sequential;
  config.per_device_train_batch_size = test.data_ranks() == 1 ? 2 : 1;
  config.gradient_accumulation_steps = test.data_ranks() == 4 ? 1 : 2;
  config.zero.stage = test.stage;
  config.tensor_parallel_size = test.tp;
  config.pipeline_parallel_size = test.pp;
  return config;
}

double norm(const std::vector<float>& tensor) {
  double squares = 0;
  for (float x : tensor) squares += double{x} * x;
  return std::sqrt(squares);
}

void expect_norms(const Json& expected, const Tensors& tensors, double tolerance) {
  ASSERT_EQ(expected.size(), tensors.size());
  for (const auto& [name, value] : expected.items()) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    const double reference = value;
    EXPECT_NEAR(norm(tensors.at(name)), reference, tolerance * reference) << name;
  }
}

class Golden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > max_ranks()) GTEST_SKIP() << "more ranks than GPUs";
  }
};

TEST_P(Golden, ReproducesTransformers) {
  const std::filesystem::path folder = folder_of(GetParam().model);
  const Json expected = read_json(folder / "expected.json");
  RigOptions options;
  options.config = configure(expected.at("hyper"), GetParam());
  options.model = model::build_model(model::read_model_config(folder));
  options.ranks = GetParam().ranks;
  options.gradients = true;
  data::DatasetOptions read;
  read.vocab_size = options.model.config.vocab_size;
  read.max_seq_length = options.model.config.max_position_embeddings;
  const data::Dataset dataset = data::Dataset::load(folder / "train.jsonl", read);
  options.dataset = &dataset;
  options.source = [&] { return std::make_unique<train::FolderSource>(folder, options.model); };

  const RigResult result = train(options);

  const Json& steps = expected.at("steps");
  ASSERT_EQ(result.steps.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& control = result.steps[i];
    const double loss = steps[i].at("loss");
    const double grad_norm = steps[i].at("grad_norm");
    EXPECT_NEAR(train::value(control, ops::Control::loss), loss, 2e-5 * loss) << "step " << i + 1;
    EXPECT_NEAR(train::value(control, ops::Control::grad_norm), grad_norm, 1e-4 * grad_norm)
        << "step " << i + 1;
    EXPECT_DOUBLE_EQ(train::value(control, ops::Control::learning_rate),
                     steps[i].at("learning_rate").get<double>());
    EXPECT_EQ(train::value(control, ops::Control::trained_tokens),
              steps[i].at("trained_tokens").get<double>());
  }
  expect_norms(expected.at("grad_norm_by_parameter_step1"), result.gradients, 1e-4);
  expect_norms(expected.at("weight_norm_by_parameter_final"), result.masters, 1e-5);
  EXPECT_EQ(result.planned, result.allocated);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"qwen2", "qwen2_tied", "llama3", "qwen3", "mistral"}) {
    all.push_back({model, 1, 0});
    for (int ranks : {2, 4}) {
      for (int stage = 0; stage <= 3; ++stage) all.push_back({model, ranks, stage});
    }
    all.insert(all.end(), {{model, 2, 0, 2, 1},
                           {model, 4, 0, 4, 1},
                           {model, 2, 0, 1, 2},
                           {model, 8, 3, 2, 2}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(cases()), [](const auto& test) {
  return test.param.model + "_ranks" + std::to_string(test.param.ranks) + "_zero" +
         std::to_string(test.param.stage) +
         (test.param.tp > 1 ? "_tp" + std::to_string(test.param.tp) : "") +
         (test.param.pp > 1 ? "_pp" + std::to_string(test.param.pp) : "");
});

}  // namespace
}  // namespace trireme::testing
