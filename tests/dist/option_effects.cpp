#include "dist/option_effects.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "support/forwarding_device.h"
#include "support/run_world.h"
#include "support/tiny_tokenizer.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using Look = std::function<void(Laboratory&, const Effect&)>;

/// How the table names the folder that runs work in.
constexpr std::string_view kHere = "HERE";

Flags with_it(const Flags& base, const Effect& effect) {
  return with(base, {{effect.option, effect.value}});
}

const Laboratory::Training& trained(Laboratory& laboratory, const Flags& flags) {
  const auto& training = laboratory.train(flags);
  EXPECT_EQ(training.outcome.code, 0) << training.outcome.text();
  return training;
}

// Looks -------------------------------------------------------------------------------------

/// Another program, or another table of memory.
Look program(const Flags& base = {}) {
  return [base](Laboratory& laboratory, const Effect& effect) {
    EXPECT_NE(laboratory.plan(with_it(base, effect)), laboratory.plan(base));
  };
}

/// Other lines in metrics.jsonl.
Look metrics(const Flags& base = {}) {
  return [base](Laboratory& laboratory, const Effect& effect) {
    EXPECT_NE(trained(laboratory, with_it(base, effect)).metrics,
              trained(laboratory, base).metrics);
  };
}

/// Other files.
Look files(const Flags& base = {}) {
  return [base](Laboratory& laboratory, const Effect& effect) {
    EXPECT_NE(trained(laboratory, with_it(base, effect)).files, trained(laboratory, base).files);
  };
}

/// `text` is printed, and is not without the option.
Look says(const std::string& text, const Flags& base = {}) {
  return [text, base](Laboratory& laboratory, const Effect& effect) {
    const std::string changed = laboratory.train(with_it(base, effect)).outcome.text();
    EXPECT_TRUE(has(changed, text)) << changed;
    const std::string plain = laboratory.train(base).outcome.text();
    EXPECT_FALSE(has(plain, text)) << plain;
  };
}

/// `text` is printed no more.
Look silences(const std::string& text, const Flags& base = {}) {
  return [text, base](Laboratory& laboratory, const Effect& effect) {
    const std::string changed = laboratory.train(with_it(base, effect)).outcome.text();
    EXPECT_FALSE(has(changed, text)) << changed;
    const std::string plain = laboratory.train(base).outcome.text();
    EXPECT_TRUE(has(plain, text)) << plain;
  };
}

/// `file`, below the folder that runs work in, is there only with the option.
Look writes(const std::string& file, const Flags& base = {}) {
  return [file, base](Laboratory& laboratory, const Effect& effect) {
    const fs::path path = laboratory.work() / file;
    fs::remove_all(path);
    trained(laboratory, with(base, {{"seed", "11"}}));  // not one that ran before
    EXPECT_FALSE(fs::exists(path)) << path;
    trained(laboratory, with_it(base, effect));
    EXPECT_TRUE(fs::exists(path)) << path;
  };
}

/// On a terminal there is no line that goes back to its start.
void see_no_bar(Laboratory& laboratory, const Effect& effect) {
  const auto returns_on_terminal = [&](const Flags& flags) {
    const Outcome outcome = laboratory.work().run_shell(
        R"-(script --quiet --command "$(printf '%q ' "$@")" "$TMPDIR/typescript")-",
        command("train", with(laboratory.work().flags(), flags)));
    EXPECT_TRUE(has(outcome.out, "Model saved in")) << outcome.text();
    return count(outcome.out, "\r") - count(outcome.out, "\r\n");
  };
  EXPECT_GT(returns_on_terminal({}), 0);
  EXPECT_EQ(returns_on_terminal(with_it({}, effect)), 0);
}

/// A rank gives up on one that stands still.
void see_rank_give_up(Laboratory& laboratory, const Effect& effect) {
  const Flags flags =
      with(laboratory.work().flags(), {{effect.option, effect.value}, {"max_steps", "1000000"}});
  const int port = free_port();
  auto still = laboratory.work().start(command("train", flags), rank_environment(1, 2, port));
  auto waits = laboratory.work().start(command("train", flags), rank_environment(0, 2, port));
  waits->line_with("Planned memory");
  still->process().signal(SIGSTOP);
  EXPECT_EQ(waits->finish(), 1) << waits->err();
  EXPECT_TRUE(has(waits->err(), "timed out after 1000 ms")) << waits->err();
}

/// Every step has a collective, and waits for it.
void see_slow_steps(Laboratory& laboratory, const Effect& effect) {
  const auto& training = trained(laboratory, {{"ranks", "2"}, {effect.option, effect.value}});
  const auto& seconds = training.step_seconds;
  const double delay = std::stod(effect.value) / 1000;
  EXPECT_GE(std::accumulate(seconds.begin(), seconds.end(), 0.0),
            delay * static_cast<double>(seconds.size()));
}

/// Fills with NaN while training.
void see_poison(Laboratory& laboratory, const Effect& effect) {
  std::atomic<int> fills = 0;
  class CountingDevice final : public testing::ForwardingDevice {
   public:
    CountingDevice(device::Device& device, std::atomic<int>& fills)
        : ForwardingDevice(device), fills_(fills) {}
    void fill(device::StreamKind stream, void* to, uint8_t byte, int64_t bytes) override {
      if (byte == 0xff) ++fills_;
      device_.fill(stream, to, byte, bytes);
    }

   private:
    std::atomic<int>& fills_;
  };
  const auto fills_of = [&](const Flags& more) {
    fills = 0;
    const Words words = command("train", with(laboratory.work().flags(), more));
    const auto errors = testing::run_in_process(
        {words.begin() + 1, words.end()}, 1, [&](int, device::Device& device) {
          return std::make_unique<CountingDevice>(device, fills);
        });
    EXPECT_EQ(errors, std::vector<std::string>{""});
    return fills.load();
  };
  EXPECT_GT(fills_of({{effect.option, effect.value}}), fills_of({}));
}

// Bases -------------------------------------------------------------------------------------

const Flags kZero3 = {{"world_size", "4"}, {"zero_stage", "3"}};
const Flags kSaves = {{"save_strategy", "steps"}, {"save_steps", "1"}};
const Flags kEvaluates = {
    {"eval_path", "HERE/eval.jsonl"}, {"eval_strategy", "steps"}, {"eval_steps", "3"}};
const Flags kPrompts = {{"model_name_or_path", "HERE/spoken"}, {"data_path", "HERE/prompts.jsonl"}};
const Flags kSaves3 = {{"save_strategy", "steps"}, {"save_steps", "3"}};

// The table, in groups ------------------------------------------------------------------------

std::vector<Effect> data_effects() {
  return {
      {"model_name_or_path", "HERE/deeper", program()},
      {"init_from_config", "false", says("no model.safetensors")},
      {"max_seq_length", "8", program()},
      {"data_path", "HERE/other.jsonl", metrics()},
      {"eval_path", "HERE/other.jsonl", metrics(kEvaluates)},
      {"on_long", "skip", metrics({{"max_seq_length", "12"}})},
      {"completion_only_loss", "false", metrics(kPrompts)},
      {"packing", "true", program()},
      {"packing_strategy", "wrapped", metrics({{"packing", "true"}, {"max_seq_length", "24"}})},
      {"eval_packing", "true", says("Packing of evaluation", kEvaluates)},
      {"train_sampling_strategy", "sequential", metrics()},
      {"even_batches", "true", metrics({{"ranks", "2"}, {"max_steps", "13"}})},
      {"seed", "7", metrics()},
      {"data_seed", "7", metrics()},
  };
}

std::vector<Effect> step_effects() {
  return {
      {"per_device_train_batch_size", "3", program()},
      {"per_device_eval_batch_size", "2", program(kEvaluates)},
      {"gradient_accumulation_steps", "2", program()},
      {"train_batch_size", "6", program()},
      {"num_train_epochs", "1", metrics({{"max_steps", "-1"}})},
      {"max_steps", "3", metrics()},
  };
}

std::vector<Effect> optimizer_effects() {
  return {
      {"optim", "sgd", program()},
      {"learning_rate", "2e-2", metrics()},
      {"weight_decay", "0.5", metrics()},
      {"adam_beta1", "0.5", metrics()},
      {"adam_beta2", "0.5", metrics()},
      {"adam_epsilon", "1", metrics()},
      {"max_grad_norm", "0.5", metrics()},
      {"lr_scheduler_type", "cosine", metrics()},
      {"lr_scheduler_kwargs", R"({"num_cycles": 2})",
       metrics({{"lr_scheduler_type", "cosine_with_restarts"}})},
      {"warmup_steps", "2", metrics()},
      {"warmup_ratio", "0.5", metrics()},
      {"max_consecutive_skips", "3",
       says("not finite 3 times in a row", {{"learning_rate", "1e30"}, {"max_steps", "20"}})},
  };
}

std::vector<Effect> layout_effects() {
  return {
      {"bf16", "true", program()},
      {"torch_dtype", "bfloat16", program()},
      {"master_dtype", "bfloat16", program({{"bf16", "true"}})},
      {"moment_dtype", "bfloat16", program({{"bf16", "true"}})},
      {"reduce_dtype", "bfloat16", program(kZero3)},
      {"deterministic", "false", says("deterministic = false has no effect")},
      {"full_determinism", "true",
       says("contradicts --full_determinism true", {{"deterministic", "false"}})},
      {"device", "cuda", silences("Device = CPU")},
      {"use_cpu", "true", says("contradicts --use_cpu true", {{"device", "cuda"}})},
      {"tensor_parallel_size", "2", program({{"world_size", "4"}})},
      {"pipeline_parallel_size", "2", program({{"world_size", "4"}})},
      {"virtual_pipeline_size", "3",
       program({{"world_size", "2"},
                {"model_name_or_path", "HERE/deeper"},
                {"pipeline_parallel_size", "2"},
                {"pipeline_schedule", "interleaved"},
                {"virtual_pipeline_size", "2"}})},
      {"pipeline_schedule", "zero_bubble",
       program({{"world_size", "4"}, {"pipeline_parallel_size", "2"}})},
      {"pipeline_layers", "0,2", program({{"world_size", "2"}, {"pipeline_parallel_size", "2"}})},
      {"rank_order", "tp-pp-dp",
       program({{"world_size", "8"},
                {"rank", "4"},
                {"tensor_parallel_size", "2"},
                {"pipeline_parallel_size", "2"}})},
      {"zero_stage", "2", program({{"world_size", "4"}})},
      {"deepspeed", R"({"zero_optimization": {"stage": 2}})", program({{"world_size", "4"}})},
      {"shard_group_size", "2", program(kZero3)},
      {"dp_replicate_size", "2", program(kZero3)},
      {"reduce_at", "boundary", program(with(kZero3, {{"gradient_accumulation_steps", "2"}}))},
      {"overlap_comm", "false", program(kZero3)},
      {"reduce_bucket_size", "100", program(kZero3)},
      {"sub_group_size", "100", program(kZero3)},
      {"stage3_prefetch_bucket_size", "0", program(kZero3)},
      {"stage3_max_live_parameters", "0", program(kZero3)},
      {"stage3_max_reuse_distance", "0",
       program(with(kZero3, {{"model_name_or_path", "HERE/deeper"}}))},
      {"stage3_param_persistence_threshold", "100", program(kZero3)},
      {"fsdp", "full_shard", program({{"world_size", "4"}})},
      {"fsdp_config", R"({"reshard_after_forward": false})",
       program({{"world_size", "4"}, {"fsdp", "full_shard"}})},
      {"parallelism_config", R"({"dp_replicate_size": 2, "dp_shard_size": 2})", program(kZero3)},
      {"accelerate_config", R"({"mixed_precision": "bf16"})", program()},
      {"recompute", "block:1,none", program()},
      {"gradient_checkpointing", "true", program()},
      {"ddp_timeout", "1", see_rank_give_up},
      {"algorithm_cache", "HERE/cache", says("algorithm_cache has no effect")},
  };
}

std::vector<Effect> output_effects() {
  return {
      {"output_dir", "HERE/elsewhere", says("/elsewhere\n")},
      {"save_strategy", "epoch", files()},
      {"save_steps", "3", files(kSaves)},
      {"save_total_limit", "1", files(kSaves)},
      {"resume_from_checkpoint", "true", says("there is no checkpoint in")},
      {"save_only_model", "true", files(kSaves)},
      {"logging_strategy", "epoch", silences("'step': 1,", {{"logging_steps", "1"}})},
      {"logging_first_step", "true", says("'step': 1,")},
      {"logging_steps", "2", says("'loss'")},
      {"eval_strategy", "epoch", metrics(kEvaluates)},
      {"eval_steps", "2", metrics(kEvaluates)},
      {"eval_delay", "4", metrics(kEvaluates)},
      {"eval_on_start", "true", metrics(kEvaluates)},
      {"do_eval", "true", metrics(kEvaluates)},
      {"load_best_model_at_end", "true", says("Loaded the best model", with(kEvaluates, kSaves3))},
      {"report_to", "tensorboard", writes("out/runs")},
      {"logging_dir", "HERE/events", writes("events", {{"report_to", "tensorboard"}})},
      {"monitor_tensorboard_dir", "HERE/monitor", writes("monitor")},
      {"monitor_csv_dir", "HERE/tables", writes("tables/Train_Samples_lr.csv")},
      {"disable_tqdm", "true", see_no_bar},
      {"profile_steps", "1:1", files()},
      {"debug_poison", "true", see_poison},
      {"debug_comm_delay_ms", "30", see_slow_steps},
  };
}

}  // namespace

std::vector<Effect> option_effects() {
  std::vector<Effect> all;
  for (const auto& group :
       {data_effects(), step_effects(), optimizer_effects(), layout_effects(), output_effects()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

// Runs --------------------------------------------------------------------------------------

namespace {

std::vector<double> step_seconds(const fs::path& log) {
  std::vector<double> found;
  std::istringstream stream(read_bytes(log));
  for (std::string line; std::getline(stream, line);) {
    const Json fields = Json::parse(line);
    if (fields.contains("step_seconds")) found.push_back(fields.at("step_seconds"));
  }
  return found;
}

}  // namespace

Laboratory::Laboratory() {
  write_rows(work_ / "eval.jsonl", 7, 2);
  write_rows(work_ / "other.jsonl", 50, 3);
  write_model(work_ / "deeper", {.layers = 4});
  write_model(work_ / "spoken", {.vocab_size = 300});
  write_tokenizer(work_ / "spoken", tiny_tokenizer());
  std::string prompts;
  for (int i = 0; i < 50; ++i) {
    prompts += fmt::format("{{\"prompt\": \"{} and \", \"completion\": \"{}\"}}\n", i, i * i);
  }
  write_text(work_ / "prompts.jsonl", prompts);
}

Flags Laboratory::complete(const Flags& flags) const {
  Flags all = with(work_.flags(), flags);
  for (auto& [name, value] : all) {
    if (value.starts_with(kHere)) value.replace(0, kHere.size(), work_.path());
  }
  return all;
}

const Laboratory::Training& Laboratory::train(const Flags& flags) {
  const auto [place, is_new] = trainings_.try_emplace(flags);
  Training& training = place->second;
  if (!is_new) return training;
  Flags all = complete(flags);
  const int ranks = all.contains("ranks") ? std::stoi(all.extract("ranks").mapped()) : 1;
  const fs::path output = all.at("output_dir");
  fs::remove_all(output);
  const Words words = command("train", all);
  training.outcome = work_.run(ranks > 1 ? launched(ranks, words) : words);
  if (training.outcome.code != 0) return training;
  training.metrics = read_metrics(output / "metrics.jsonl");
  training.step_seconds = step_seconds(output / "metrics.jsonl");
  for (const auto& entry : fs::recursive_directory_iterator(output)) {
    training.files.insert(fs::relative(entry.path(), output));
  }
  return training;
}

const std::string& Laboratory::plan(const Flags& flags) {
  const auto [place, is_new] = plans_.try_emplace(flags);
  std::string& text = place->second;
  if (!is_new) return text;
  Flags all = complete(flags);
  all["print_program"] = "true";
  const Outcome outcome = work_.run(command("plan", all));
  EXPECT_EQ(outcome.code, 0) << outcome.text();
  text = outcome.out.substr(outcome.out.find("Planned memory"));
  const size_t hash = text.find(", hash ");
  text.erase(hash, text.find('\n', hash) - hash);
  return text;
}

}  // namespace trireme::test
