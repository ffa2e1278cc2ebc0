#include "config/option.h"
#include "config/option_builders.h"
#include "config/reasons.h"

namespace trireme::config {

Option Option::also(std::initializer_list<std::string_view> names) && {
  aliases.insert(aliases.end(), names);
  return std::move(*this);
}
Option Option::at_least(double low) && {
  rule.range = {.low = low};
  return std::move(*this);
}
Option Option::above(double low) && {
  rule.range = {.low = low, .low_open = true};
  return std::move(*this);
}
Option Option::between(double low, double high) && {
  rule.range = {.low = low, .high = high};
  return std::move(*this);
}
Option Option::below(double low, double high) && {
  rule.range = {.low = low, .high = high, .high_open = true};
  return std::move(*this);
}
Option Option::words(std::initializer_list<Choice> more) && {
  rule.choices.insert(rule.choices.end(), more);
  return std::move(*this);
}
Option Option::unset_as(std::string_view word) && {
  rule.unset = word;
  return std::move(*this);
}
Option Option::alone_means(std::string_view value) && {
  bare = value;
  return std::move(*this);
}

namespace {

using build::another_spelling;
using build::document;
using build::field;
using build::path;
using build::row;
using build::steps;
using Rows = std::vector<Option>;

// Products of three of these stay far inside 64 bits.
constexpr double kMaxBatch = 1 << 20;
constexpr double kMaxRanks = 1 << 20;

void append_packing(Rows& rows) {
  const auto group = OptionGroup::data;
  constexpr std::string_view kSplit =
      "not supported yet; bfd treats samples longer than max_seq_length as on_long says, and "
      "wrapped cuts all";
  rows.push_back(field("packing", group, &RunConfig::packing,
                       "fill each row of a batch with samples, up to max_seq_length tokens; batch "
                       "sizes then count such packs")
                     .also({"sample_packing", "neat_packing"}));
  rows.push_back(field("packing_strategy", group, &RunConfig::packing_strategy,
                       "bfd: samples stay whole and do not see each other, each pack takes those "
                       "that fit best; wrapped: all rows laid end to end and cut into blocks of "
                       "max_seq_length, each one sequence, of which the last may be shorter")
                     .words({{"bfd_split", "", kSplit}, {"bfd-requeue", "", kSplit}}));
  rows.push_back(field("eval_packing", group, &RunConfig::eval_packing,
                       "pack the samples that are evaluated on; auto: as packing says")
                     .also({"eval_sample_packing"})
                     .unset_as("auto"));
}

void append_model_and_data(Rows& rows) {
  const auto model = OptionGroup::model;
  rows.push_back(
      path("model_name_or_path", model, &RunConfig::model_name_or_path,
           "Hugging Face model folder, or the hub id (with @REVISION) of a model in its cache")
          .also({"base_model"}));
  rows.push_back(field("init_from_config", model, &RunConfig::init_from_config,
                       "start from random weights; only config.json is read"));
  rows.push_back(field("max_seq_length", model, &RunConfig::max_seq_length,
                       "longest sample in tokens; 0: the model's longest, at most 4096")
                     .also({"max_length", "cutoff_len", "sequence_len"})
                     .between(0, INT32_MAX));

  const auto data = OptionGroup::data;
  rows.push_back(path("data_path", data, &RunConfig::data_path,
                      "JSONL file of {\"text\"}, {\"prompt\", \"completion\"} or "
                      "{\"input_ids\", \"labels\"} rows")
                     .also({"train_file"}));
  rows.push_back(path("eval_path", data, &RunConfig::eval_path, "JSONL file to evaluate on")
                     .also({"validation_file"}));
  rows.push_back(field("on_long", data, &RunConfig::on_long,
                       "what happens to samples longer than max_seq_length"));
  rows.push_back(field("completion_only_loss", data, &RunConfig::completion_only_loss,
                       "of rows with a prompt, train the completion alone, not the prompt; auto: "
                       "so it is where there are prompts")
                     .unset_as("auto"));
  append_packing(rows);
  rows.push_back(field("train_sampling_strategy", data, &RunConfig::train_sampling_strategy,
                       "order of the samples within an epoch")
                     .words({{"group_by_length", "", kLater}}));
  rows.push_back(
      field("even_batches", data, &RunConfig::even_batches,
            "deal some samples twice at an epoch's tail, as Hugging Face does, instead of none"));
  rows.push_back(
      field("seed", data, &RunConfig::seed, "seed of weights and sample order").at_least(0));
  rows.push_back(
      field("data_seed", data, &RunConfig::data_seed, "seed of the sample order; none: seed")
          .at_least(0)
          .unset_as("none"));
}

void append_steps(Rows& rows) {
  const auto group = OptionGroup::steps;
  rows.push_back(field("per_device_train_batch_size", group,
                       &RunConfig::per_device_train_batch_size, "samples a rank and micro-batch")
                     .also({"per_gpu_train_batch_size", "micro_batch_size"})
                     .between(1, kMaxBatch));
  rows.push_back(field("per_device_eval_batch_size", group, &RunConfig::per_device_eval_batch_size,
                       "samples a rank and evaluation batch")
                     .also({"per_gpu_eval_batch_size"})
                     .between(1, kMaxBatch));
  rows.push_back(field("gradient_accumulation_steps", group,
                       &RunConfig::gradient_accumulation_steps, "micro-batches an update")
                     .between(1, kMaxBatch));
  rows.push_back(field("train_batch_size", group, &RunConfig::train_batch_size,
                       "samples an update: the product of the two above and the data ranks; 0: "
                       "follows from them")
                     .between(0, kMaxBatch * kMaxBatch));
  rows.push_back(field("num_train_epochs", group, &RunConfig::num_train_epochs,
                       "passes over the data; a fraction is allowed")
                     .also({"num_epochs"})
                     .above(0));
  rows.push_back(field("max_steps", group, &RunConfig::max_steps,
                       "updates to make, whatever num_train_epochs says; -1: by epochs")
                     .between(-1, kMaxUpdates));
}

Option scheduler_kwargs_row() {
  Option option = row<SchedulerKwargs>(
      "lr_scheduler_kwargs", OptionGroup::optimizer,
      [](auto& config) -> auto& { return config.lr_scheduler_kwargs; },
      "what the schedule is made of, as JSON or a JSON file");
  option.rule.kind = Kind::json;
  return option;
}

void append_optimizer(Rows& rows) {
  const auto group = OptionGroup::optimizer;
  rows.push_back(field("optim", group, &RunConfig::optim, "optimizer; AdamW decays decoupled")
                     .also({"optimizer"})
                     .words({{"adamw_torch", "adamw", ""},
                             {"adamw_torch_fused", "adamw", ""},
                             {"adamw_hf", "adamw", ""},
                             {"adamw_apex_fused", "adamw", ""},
                             {"adamw_bnb_8bit", "", kLater},
                             {"adamw_8bit", "", kLater},
                             {"paged_adamw_8bit", "", kLater},
                             {"paged_adamw_32bit", "", kLater},
                             {"adafactor", "", kLater},
                             {"lion_32bit", "", kLater},
                             {"muon", "", kLater}}));
  rows.push_back(
      field("learning_rate", group, &RunConfig::learning_rate, "peak learning rate").at_least(0));
  rows.push_back(field("weight_decay", group, &RunConfig::weight_decay,
                       "decay of all weights but biases and norms")
                     .at_least(0));
  rows.push_back(
      field("adam_beta1", group, &RunConfig::adam_beta1, "decay of the first moment").below(0, 1));
  rows.push_back(
      field("adam_beta2", group, &RunConfig::adam_beta2, "decay of the second moment").below(0, 1));
  rows.push_back(field("adam_epsilon", group, &RunConfig::adam_epsilon,
                       "added outside the square root of the second moment")
                     .above(0));
  rows.push_back(field("max_grad_norm", group, &RunConfig::max_grad_norm,
                       "largest gradient norm that is not clipped; 0: no clipping")
                     .at_least(0));
  rows.push_back(field("lr_scheduler_type", group, &RunConfig::lr_scheduler_type,
                       "course of the learning rate after the warm-up")
                     .also({"lr_scheduler"})
                     .words({{"reduce_lr_on_plateau", "",
                              "not supported: the rates of a run are known before it starts"}}));
  rows.push_back(scheduler_kwargs_row());
  rows.push_back(steps("warmup_steps", group, &RunConfig::warmup_steps,
                       "updates of linear warm-up, or their share of all updates"));
  rows.push_back(another_spelling(
                     "warmup_ratio", group, Kind::real, "warmup_steps",
                     [](const Json& value) { return value == 0 ? Json() : value; },
                     "share of all updates for warm-up")
                     .below(0, 1));
  rows.push_back(field("max_consecutive_skips", group, &RunConfig::max_consecutive_skips,
                       "updates in a row that a non-finite gradient may skip before the run stops")
                     .at_least(1));
}

Option shard_group_row() {
  Option option =
      field("shard_group_size", OptionGroup::layout, &RunConfig::shard_group_size,
            "hybrid sharding: neighbouring ranks that share one copy of the state, which is the "
            "same in every such group; 0: all data ranks, host: the ranks of one host")
          .also({"dp_shard_size"})
          .at_least(0)
          .unset_as("host");
  option.set = [](RunConfig& config, const Json& value) {
    config.shard_group_size = value.is_null() ? kShardGroupHost : value.get<int64_t>();
  };
  option.get = [](const RunConfig& config) {
    const int64_t size = config.shard_group_size;
    return size == kShardGroupHost ? Json() : Json(size);
  };
  return option;
}

Option persistence_row() {
  Option option =
      field("stage3_param_persistence_threshold", OptionGroup::layout,
            &ZeroConfig::param_persistence_threshold,
            "tensors of at most this many elements stay gathered; auto: 10 x hidden_size")
          .also({"param_persistence_threshold"})
          .at_least(0)
          .unset_as("auto");
  option.set = [](RunConfig& config, const Json& value) {
    config.zero.param_persistence_threshold =
        value.is_null() ? ZeroConfig::kPersistenceAuto : value.get<int64_t>();
  };
  option.get = [](const RunConfig& config) {
    const int64_t threshold = config.zero.param_persistence_threshold;
    return threshold == ZeroConfig::kPersistenceAuto ? Json() : Json(threshold);
  };
  return option;
}

void append_parallelism(Rows& rows) {
  const auto group = OptionGroup::layout;
  rows.push_back(field("tensor_parallel_size", group, &RunConfig::tensor_parallel_size,
                       "ranks that split every tensor: heads, feed-forward and vocabulary, and "
                       "between them the sequence")
                     .between(1, kMaxRanks));
  rows.push_back(field("pipeline_parallel_size", group, &RunConfig::pipeline_parallel_size,
                       "stages that the layers are cut into")
                     .between(1, kMaxRanks));
  rows.push_back(field("virtual_pipeline_size", group, &RunConfig::virtual_pipeline_size,
                       "parts of the model on each stage, which micro-batches pass in turn: a "
                       "shorter bubble for more traffic; goes with interleaved")
                     .between(1, kMaxRanks));
  rows.push_back(field("pipeline_schedule", group, &RunConfig::pipeline_schedule,
                       "in which order a stage works on its micro-batches; zero_bubble computes "
                       "weight gradients where it would wait"));
  rows.push_back(field("pipeline_layers", group, &RunConfig::pipeline_layers,
                       "blocks of each virtual stage from the front, as 4,5,5,4; none: balanced by "
                       "cost, with embedding and head"));
  rows.push_back(field("rank_order", group, &RunConfig::rank_order,
                       "how ranks are counted, the fastest axis first; tp-pp-dp makes "
                       "neighbouring ranks a copy of the model")
                     .words({{"tp-dp-pp", "tp-cp-dp-pp", ""},
                             {"tp-cp-ep-dp-pp", "tp-cp-dp-pp", ""},
                             {"tp-cp-pp-dp", "tp-pp-dp", ""},
                             {"tp-cp-ep-pp-dp", "tp-pp-dp", ""}}));
}

/// Sharding in the words of other programs.
void append_fsdp(Rows& rows) {
  const auto group = OptionGroup::layout;
  Option fsdp = field("fsdp", group, &RunConfig::fsdp,
                      "sharding as PyTorch's FSDP names it: full_shard is zero_stage 3, "
                      "shard_grad_op 2, no_shard 0; hybrid_shard and hybrid_shard_zero2 share the "
                      "state among the ranks of one host")
                    .words({{"full_shard", "", ""},
                            {"shard_grad_op", "", ""},
                            {"no_shard", "", ""},
                            {"hybrid_shard", "", ""},
                            {"hybrid_shard_zero2", "", ""},
                            {"auto_wrap", "", ""},
                            {"true", "full_shard", ""},
                            {"false", "none", ""},
                            {"none", "none", ""},
                            {"offload", "", "offload is not supported yet; leave the word out"}})
                    .alone_means("true");
  fsdp.set = [](RunConfig& config, const Json& value) {
    config.fsdp.clear();
    for (const Json& word : value) {
      if (word != "none") config.fsdp.push_back(word.get<std::string>());
    }
  };
  rows.push_back(std::move(fsdp));
  rows.push_back(document("fsdp_config", group, &RunConfig::fsdp_config,
                          "what FSDP shall do, as JSON or a JSON file"));
  rows.push_back(document("parallelism_config", group, &RunConfig::parallelism_config,
                          "accelerate's sizes of the mesh, as JSON or a JSON file"));
  rows.push_back(document("accelerate_config", group, &RunConfig::accelerate_config,
                          "accelerate's configuration file (YAML or JSON), which counts where "
                          "nothing else is said"));
}

void append_zero(Rows& rows) {
  const auto group = OptionGroup::layout;
  rows.push_back(field("zero_stage", group, &ZeroConfig::stage,
                       "sharded over data ranks: 1 optimizer, 2 and gradients, 3 and weights")
                     .between(0, 3));
  rows.push_back(document("deepspeed", group, &RunConfig::deepspeed,
                          "DeepSpeed configuration, as JSON or a JSON file")
                     .also({"deepspeed_config"})
                     .alone_means(""));
  rows.push_back(shard_group_row());
  rows.push_back(field("dp_replicate_size", group, &RunConfig::dp_replicate_size,
                       "copies of the state: data ranks / shard_group_size; 0: follows from them")
                     .at_least(0));
  rows.push_back(field("reduce_at", group, &RunConfig::reduce_at,
                       "when gradients are reduced: each micro-batch, or once an update; auto: "
                       "boundary for stages 0 and 1, micro for 2 and 3"));
  rows.push_back(
      field("overlap_comm", group, &ZeroConfig::overlap_comm, "communicate while computing"));
  rows.push_back(
      field("reduce_bucket_size", group, &ZeroConfig::reduce_bucket_size,
            "elements of one piece of a unit's gradient reduce; auto: the unit as a whole")
          .at_least(1)
          .unset_as("auto"));
  rows.push_back(
      field("sub_group_size", group, &ZeroConfig::sub_group_size,
            "elements of one tile of the optimizer; auto: the rank's slice of a unit as a whole")
          .at_least(1)
          .unset_as("auto"));
  rows.push_back(field("stage3_prefetch_bucket_size", group, &ZeroConfig::prefetch_bucket_size,
                       "elements gathered ahead, in whole units; auto: one unit, 0: none")
                     .also({"prefetch_bucket_size"})
                     .at_least(0)
                     .unset_as("auto"));
  rows.push_back(field("stage3_max_live_parameters", group, &ZeroConfig::max_live_parameters,
                       "elements gathered at one time, in whole units")
                     .also({"max_live_parameters"})
                     .at_least(0)
                     .unset_as("auto"));
  rows.push_back(
      field("stage3_max_reuse_distance", group, &ZeroConfig::max_reuse_distance,
            "units used again within this many elements of others stay gathered; auto: where that "
            "costs no memory")
          .also({"max_reuse_distance"})
          .at_least(0)
          .unset_as("auto"));
  rows.push_back(persistence_row());
}

/// What state is kept in, in the words of PyTorch and DeepSpeed.
Option precision(std::string_view name, Precision RunConfig::*member, std::string_view help) {
  return field(name, OptionGroup::numbers, member, help)
      .words({{"fp32", "float32", ""},
              {"bf16", "bfloat16", ""},
              {"torch.float32", "float32", ""},
              {"torch.bfloat16", "bfloat16", ""},
              {"float16", "", "not supported; bfloat16 needs no loss scale"},
              {"fp16", "", "not supported; bfloat16 needs no loss scale"}});
}

void append_layout(Rows& rows) {
  const auto group = OptionGroup::layout;
  rows.push_back(field("bf16", OptionGroup::numbers, &RunConfig::bf16,
                       "bf16 weights and activations; gradients are fp32, and masters and moments "
                       "are unless master_dtype and moment_dtype say otherwise"));
  rows.push_back(another_spelling(
                     "torch_dtype", OptionGroup::numbers, Kind::choice, "bf16",
                     [](const Json& value) { return value == "bfloat16" ? Json(true) : Json(); },
                     "bfloat16 is --bf16; weights are read as exactly as they are stored")
                     .also({"dtype"})
                     .words({{"auto", "", ""},
                             {"float32", "", ""},
                             {"bfloat16", "", ""},
                             {"fp32", "float32", ""},
                             {"bf16", "bfloat16", ""},
                             {"torch.float32", "float32", ""},
                             {"torch.bfloat16", "bfloat16", ""},
                             {"float16", "", "not supported; bfloat16 needs no loss scale"},
                             {"fp16", "", "not supported; bfloat16 needs no loss scale"}}));
  rows.push_back(precision("master_dtype", &RunConfig::master_dtype,
                           "master weights under bf16; bfloat16: the weight itself is the master, "
                           "rounded stochastically, 2 bytes a parameter less"));
  rows.push_back(precision("moment_dtype", &RunConfig::moment_dtype,
                           "AdamW's moments; bfloat16 (with bf16): rounded stochastically, 4 bytes "
                           "a parameter less"));
  rows.push_back(precision("reduce_dtype", &RunConfig::reduce_dtype,
                           "what gradients travel as between data ranks; their sums are float32"));
  rows.push_back(field("deterministic", OptionGroup::numbers, &RunConfig::deterministic,
                       "the same bits in every run of one layout: always on the CPU; on GPUs true "
                       "insists, false takes the fastest gradient of attention, auto the repeating "
                       "one where it costs under 5 % of a step")
                     .alone_means("true"));
  rows.push_back(another_spelling(
      "full_determinism", OptionGroup::numbers, Kind::boolean, "deterministic",
      [](const Json& value) { return value == true ? Json("true") : Json(); },
      "insist on the same bits in every run"));
  rows.push_back(field("device", group, &RunConfig::device, "where ranks compute"));
  rows.push_back(another_spelling(
                     "use_cpu", group, Kind::boolean, "device",
                     [](const Json& value) { return value == true ? Json("cpu") : Json(); },
                     "compute on the CPU")
                     .also({"no_cuda"}));
  append_parallelism(rows);
  append_zero(rows);
  append_fsdp(rows);
  rows.push_back(
      field("recompute", group, &RunConfig::recompute,
            "activations recomputed in backward: LEVEL, or LEVEL:n,LEVEL:m blocks from the front; "
            "none, norms, activation, ffn, qkv, attention, block"));
  rows.push_back(field("gradient_checkpointing", group, &RunConfig::gradient_checkpointing,
                       "recompute block, unless recompute is given"));
  rows.push_back(field("ddp_timeout", group, &RunConfig::ddp_timeout,
                       "seconds a collective may take before the run stops")
                     .at_least(1));
  rows.push_back(path("algorithm_cache", group, &RunConfig::algorithm_cache,
                      "folder where runs on GPUs leave each other the measured algorithms of "
                      "matrix products; auto: trireme in $XDG_CACHE_HOME or ~/.cache; none: each "
                      "run measures"));
}

void append_output(Rows& rows) {
  const auto group = OptionGroup::output;
  rows.push_back(path("output_dir", group, &RunConfig::output_dir,
                      "where checkpoints, metrics.jsonl and the trained model go"));
  rows.push_back(field("save_strategy", group, &RunConfig::save_strategy,
                       "when to save; best: after an evaluation with the lowest loss so far"));
  rows.push_back(steps("save_steps", group, &RunConfig::save_steps,
                       "updates between checkpoints, or their share of all updates"));
  rows.push_back(
      field("save_total_limit", group, &RunConfig::save_total_limit, "checkpoints kept; 0: all")
          .at_least(0));
  rows.push_back(field("save_only_model", group, &RunConfig::save_only_model,
                       "checkpoints hold the Hugging Face model alone; no run resumes from them"));
  Option resume = field("resume_from_checkpoint", group, &RunConfig::resume_from_checkpoint,
                        "checkpoint folder, or true for the last one of the run in output_dir");
  resume.rule.kind = Kind::path;
  resume.bare = "true";
  resume.set = [](RunConfig& config, const Json& value) {
    const std::string word = lower_case(value.get_ref<const std::string&>());
    if (word == "true" || word == "yes" || word == "1") {
      config.resume_from_checkpoint = "true";
    } else if (word == "false" || word == "no" || word == "none" || word == "0") {
      config.resume_from_checkpoint.clear();
    } else {
      config.resume_from_checkpoint = value.get<std::string>();
    }
  };
  rows.push_back(std::move(resume));
}

void append_logging_and_evaluation(Rows& rows) {
  const auto group = OptionGroup::output;
  rows.push_back(field("logging_strategy", group, &RunConfig::logging_strategy,
                       "when lines are printed and go to trainer_state.json"));
  rows.push_back(field("logging_first_step", group, &RunConfig::logging_first_step,
                       "a line also after the first update"));
  rows.push_back(steps("logging_steps", group, &RunConfig::logging_steps,
                       "updates between printed lines, or their share of all updates")
                     .above(0));
  rows.push_back(field("eval_strategy", group, &RunConfig::eval_strategy, "when to evaluate")
                     .also({"evaluation_strategy"}));
  rows.push_back(steps("eval_steps", group, &RunConfig::eval_steps,
                       "updates between evaluations, or their share of all; 0: logging_steps"));
}

void append_watching(Rows& rows) {
  const auto group = OptionGroup::output;
  rows.push_back(
      field("eval_delay", group, &RunConfig::eval_delay,
            "updates, or epochs where eval_strategy is epoch, before the first evaluation")
          .at_least(0));
  rows.push_back(field("eval_on_start", group, &RunConfig::eval_on_start,
                       "evaluate also before the first update"));
  rows.push_back(field("do_eval", group, &RunConfig::do_eval,
                       "evaluate also the trained model, for eval_results.json"));
  rows.push_back(field("load_best_model_at_end", group, &RunConfig::load_best_model_at_end,
                       "output_dir gets the model of the checkpoint with the lowest eval_loss, "
                       "which save_total_limit keeps"));
  rows.push_back(field("report_to", group, &RunConfig::report_to,
                       "tensorboard: events with Hugging Face's tags; jsonl: metrics.jsonl, which "
                       "is always written; all: both")
                     .words({{"none", "", ""},
                             {"jsonl", "", ""},
                             {"tensorboard", "", ""},
                             {"all", "", ""},
                             {"azure_ml", "", ""},
                             {"clearml", "", ""},
                             {"codecarbon", "", ""},
                             {"comet_ml", "", ""},
                             {"dagshub", "", ""},
                             {"dvclive", "", ""},
                             {"flyte", "", ""},
                             {"mlflow", "", ""},
                             {"neptune", "", ""},
                             {"swanlab", "", ""},
                             {"trackio", "", ""},
                             {"wandb", "", ""}}));
  rows.push_back(path("logging_dir", group, &RunConfig::logging_dir,
                      "folder of TensorBoard's events; none: TENSORBOARD_LOGGING_DIR, else "
                      "runs/DATE_HOST in output_dir")
                     .unset_as("none"));
  rows.push_back(path("monitor_tensorboard_dir", group, &RunConfig::monitor_tensorboard_dir,
                      "folder of events as DeepSpeed's tensorboard section asks for: "
                      "Train/Samples/train_loss and lr of every update, over the samples seen")
                     .unset_as("none"));
  rows.push_back(path("monitor_csv_dir", group, &RunConfig::monitor_csv_dir,
                      "folder of tables as DeepSpeed's csv_monitor section asks for")
                     .unset_as("none"));
  rows.push_back(field("disable_tqdm", group, &RunConfig::disable_tqdm,
                       "plain lines instead of a progress line on a terminal"));
}

void append_proof(Rows& rows) {
  const auto proof = OptionGroup::proof;
  rows.push_back(field("profile_steps", proof, &RunConfig::profile_steps,
                       "A:B: trace the steps from A to B (from 1) into output_dir, a file a rank "
                       "that Perfetto opens"));
  rows.push_back(field("debug_poison", proof, &RunConfig::debug_poison,
                       "fill released memory with NaN; results must not change"));
  rows.push_back(field("debug_comm_delay_ms", proof, &RunConfig::debug_comm_delay_ms,
                       "start every collective this much later; results must not change")
                     .at_least(0));
}

}  // namespace

std::vector<Option> train_options() {
  Rows rows;
  append_model_and_data(rows);
  append_steps(rows);
  append_optimizer(rows);
  append_layout(rows);
  append_output(rows);
  append_logging_and_evaluation(rows);
  append_watching(rows);
  append_proof(rows);
  build::append_other_names(rows);
  return rows;
}

template <typename T>
Option extra_option(std::string_view name, T& target, std::string_view help) {
  return build::row<T>(
      name, OptionGroup::command, [&target](auto&) -> T& { return target; }, help);
}
template Option extra_option(std::string_view, bool&, std::string_view);
template Option extra_option(std::string_view, int64_t&, std::string_view);
template Option extra_option(std::string_view, double&, std::string_view);
template Option extra_option(std::string_view, std::string&, std::string_view);

}  // namespace trireme::config
