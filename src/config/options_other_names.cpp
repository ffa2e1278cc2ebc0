// Names that do not act here: Hugging Face's TrainingArguments first, then TRL's, LLaMA-Factory's
// and axolotl's. A name leaves this file when it is built.
#include "config/option_builders.h"
#include "config/reasons.h"

namespace trireme::config::build {
namespace {

using Rows = std::vector<Option>;

constexpr std::string_view kMetrics = "metrics.jsonl has every update, whatever is printed";
constexpr std::string_view kNoHub = "nothing is sent to the hub";
constexpr std::string_view kNoDdp = "gradients are reduced a unit at a time, without DDP's buckets";
constexpr std::string_view kNoLoader = "batches are built ahead natively, without worker processes";
constexpr std::string_view kUseDataPath = "not supported yet; name a JSONL file with --data_path";

void append_model(Rows& rows) {
  const auto group = OptionGroup::model;
  rows.push_back(meaningless("attn_implementation", group, kText,
                             "there is one attention, in blocks and without padding"));
  rows.push_back(
      meaningless("trust_remote_code", group, kBool, "no code of a model folder is ever run"));
  rows.push_back(refused("finetuning_type", group, kText, {"full"}, kLater));
  rows.push_back(refused("special_tokens", group, kJson, {Json::object()}, kLater));
  rows.push_back(
      refused("eos_token", group, kText, {""}, "not supported yet; the tokenizer's own is used"));
  rows.push_back(refused("chat_template_path", group, kText, {""}, kLater));
}

void append_data(Rows& rows) {
  const auto group = OptionGroup::data;
  rows.push_back(refused("dataset", group, kText, {""}, kUseDataPath));
  rows.push_back(refused("datasets", group, kJson, {Json::array()}, kUseDataPath));
  rows.push_back(refused("dataset_dir", group, kText, {""}, kUseDataPath));
  rows.push_back(refused("dataset_text_field", group, kText, {"text"},
                         "not supported yet; name the column text"));
  rows.push_back(refused("template", group, kText, {""}, kLater));
  rows.push_back(refused("stage", group, kText, {"pt", "sft"},
                         "not supported yet; for ZeRO's stage give --zero_stage"));
  rows.push_back(refused("loss_type", group, kText, {"nll", "chunked_nll"}, kLater));
  rows.push_back(refused("group_by_length", group, kBool, {false}, kLater));
  rows.push_back(meaningless("length_column_name", group, kText,
                             "lengths are counted while the rows are checked"));
  rows.push_back(meaningless("padding_free", group, kBool, kNoPadding));
  rows.push_back(meaningless("pad_to_multiple_of", group, kInt, kNoPadding));
  rows.push_back(refused("assistant_only_loss", group, kBool, {false},
                         "not supported yet; give rows of input_ids and labels"));
  rows.push_back(refused("train_on_prompt", group, kBool, {false},
                         "completion_only_loss = false says so of rows with a prompt"));
  rows.push_back(refused("mask_history", group, kBool, {false},
                         "not supported yet; give rows of input_ids and labels"));
  rows.push_back(refused("streaming", group, kBool, {false}, kLater));
  rows.push_back(meaningless("buffer_size", group, kInt, "data is not streamed"));
  rows.push_back(refused("mix_strategy", group, kText, {"", "concat"}, kLater));
  rows.push_back(refused("interleave_probs", group, kText, {""}, kLater));
  rows.push_back(refused("max_samples", group, kInt, {}, kLater));
  rows.push_back(refused("val_size", group, kReal, {0},
                         "not supported yet; name the samples to evaluate on with --eval_path")
                     .also({"val_set_size"}));
  rows.push_back(refused("tokenized_path", group, kText, {""}, kLater));
  rows.push_back(meaningless("dataset_prepared_path", group, kText, "no prepared copy is kept"));
  rows.push_back(meaningless("preprocessing_num_workers", group, kInt, kNoLoader));
  rows.push_back(meaningless("remove_unused_columns", group, kBool,
                             "columns that are not understood are not read"));
  rows.push_back(
      refused("dataloader_drop_last", group, kBool, {false},
              "not supported yet; every sample is dealt, and short ranks run empty micro-batches"));
  rows.push_back(meaningless("dataloader_num_workers", group, kInt, kNoLoader));
  rows.push_back(meaningless("dataloader_pin_memory", group, kBool, kNoLoader));
  rows.push_back(meaningless("dataloader_prefetch_factor", group, kInt, kNoLoader));
  rows.push_back(meaningless("dataloader_persistent_workers", group, kBool, kNoLoader));
  rows.push_back(refused("ignore_data_skip", group, kBool, {false},
                         "a resumed run always continues at the same sample"));
  rows.push_back(refused("accelerator_config", group, kJson, {Json::object(), ""},
                         "not supported yet; for even_batches give --even_batches"));
}

void append_training(Rows& rows) {
  const auto steps = OptionGroup::steps;
  rows.push_back(refused("auto_find_batch_size", steps, kBool, {false},
                         "not supported; trireme plan says what fits before the run"));
  rows.push_back(refused("average_tokens_across_devices", steps, kBool, {true},
                         "the loss is always the mean over all trained tokens of an update"));
  rows.push_back(refused("do_train", steps, kBool, {true}, "trireme train always trains"));
  rows.push_back(refused("do_predict", steps, kBool, {false}, kLater));

  const auto optimizer = OptionGroup::optimizer;
  rows.push_back(refused("optim_args", optimizer, kText, {""}, kLater));
  rows.push_back(refused("optim_target_modules", optimizer, kText, {""}, kLater));
  rows.push_back(refused("use_muon", optimizer, kBool, {false}, kLater));
  rows.push_back(refused("label_smoothing_factor", optimizer, kReal, {0}, kLater));
  rows.push_back(refused("neftune_noise_alpha", optimizer, kReal, {0}, kLater));

  const auto numbers = OptionGroup::numbers;
  rows.push_back(
      refused("fp16", numbers, kBool, {false}, "not supported; --bf16 needs no loss scale"));
  rows.push_back(meaningless("fp16_opt_level", numbers, kText, "fp16 is off"));
  rows.push_back(meaningless("tf32", numbers, kBool,
                             "products of fp32 numbers are rounded to fp32, never more"));
  rows.push_back(refused("bf16_full_eval", numbers, kBool, {false},
                         "not supported yet; evaluation computes as training does"));
  rows.push_back(refused("fp16_full_eval", numbers, kBool, {false},
                         "not supported; evaluation computes as training does"));
  rows.push_back(refused("gradient_dtype", numbers, kText, {"fp32", "float32"}, kAllFp32));
}

void append_layout(Rows& rows) {
  const auto group = OptionGroup::layout;
  rows.push_back(refused("sequence_parallel", group, kBool, {true},
                         "always on where tensors are split; without it every rank would compute "
                         "and keep the same norms and residuals, for no less traffic"));
  rows.push_back(refused("context_parallel_size", group, kInt, {1}, kLater));
  rows.push_back(refused("layout", group, kText, {""}, kLater));
  rows.push_back(meaningless("fsdp_min_num_params", group, kInt, kUnits));
  rows.push_back(meaningless("fsdp_transformer_layer_cls_to_wrap", group, kText, kUnits));
  rows.push_back(meaningless("gradient_checkpointing_kwargs", group, kJson,
                             "recomputation has no variants; --recompute chooses its level"));
  rows.push_back(meaningless("torch_compile", group, kBool, kKernels));
  rows.push_back(meaningless("torch_compile_backend", group, kText, kKernels));
  rows.push_back(meaningless("torch_compile_mode", group, kText, kKernels));
  rows.push_back(meaningless("torch_empty_cache_steps", group, kInt,
                             "memory is planned once; there is no cache"));
  rows.push_back(meaningless("use_liger_kernel", group, kBool, kKernels));
  rows.push_back(meaningless("liger_kernel_config", group, kJson, kKernels));
  rows.push_back(meaningless("ddp_backend", group, kText, "communication follows --device"));
  rows.push_back(meaningless("ddp_bucket_cap_mb", group, kReal, kNoDdp));
  rows.push_back(meaningless("ddp_find_unused_parameters", group, kBool, kNoDdp));
  rows.push_back(meaningless("ddp_broadcast_buffers", group, kBool, kNoDdp));
  rows.push_back(
      meaningless("local_rank", group, kInt, "a rank's place is read from the environment"));
}

void append_output(Rows& rows) {
  const auto group = OptionGroup::output;
  rows.push_back(meaningless("overwrite_output_dir", group, kBool,
                             "a run continues from output_dir only with --resume_from_checkpoint"));
  rows.push_back(meaningless("logging_nan_inf_filter", group, kBool,
                             "a loss that is not finite is shown as it is"));
  rows.push_back(meaningless("run_name", group, kText, "no tracker is fed"));
  rows.push_back(meaningless("include_num_input_tokens_seen", group, kText,
                             "num_input_tokens_seen is always in trainer_state.json")
                     .alone_means("true"));
  rows.push_back(meaningless("include_tokens_per_second", group, kBool,
                             "tokens_per_second is always in metrics.jsonl"));
  rows.push_back(meaningless("plot_loss", group, kBool, kMetrics));
  rows.push_back(meaningless("log_level", group, kText, "there is one level of messages"));
  rows.push_back(meaningless("log_level_replica", group, kText, "there is one level of messages"));
  rows.push_back(meaningless("log_on_each_node", group, kBool, "rank 0 alone prints progress"));
  rows.push_back(meaningless("eval_accumulation_steps", group, kInt,
                             "evaluation keeps sums, not predictions"));
  rows.push_back(
      meaningless("prediction_loss_only", group, kBool, "evaluation keeps sums, not predictions"));
  rows.push_back(refused("evals_per_epoch", group, kInt, {0},
                         "not supported yet; give --eval_strategy and --eval_steps"));
  rows.push_back(refused("saves_per_epoch", group, kInt, {0},
                         "not supported yet; give --save_strategy and --save_steps"));
  rows.push_back(refused("save_on_each_node", group, kBool, {false},
                         "not supported yet; output_dir is one folder that all ranks see"));
  rows.push_back(refused("save_safetensors", group, kBool, {true},
                         "weights are always written as safetensors"));
  rows.push_back(refused("metric_for_best_model", group, kText, {"loss", "eval_loss"},
                         "not supported yet; eval_loss is what is measured"));
  rows.push_back(refused("greater_is_better", group, kBool, {false},
                         "not supported; of losses the lowest is best"));
  rows.push_back(refused("enable_jit_checkpoint", group, kBool, {false}, kLater));
  rows.push_back(refused("restore_callback_states_from_checkpoint", group, kBool, {false},
                         "not supported; there are no callbacks"));
  rows.push_back(refused("push_to_hub", group, kBool, {false},
                         "not supported; a run needs no network, so upload output_dir after it"));
  for (const std::string_view name :
       {"hub_model_id", "hub_strategy", "hub_token", "hub_revision"}) {
    rows.push_back(meaningless(name, group, kText, kNoHub));
  }
  rows.push_back(meaningless("hub_private_repo", group, kBool, kNoHub));
  rows.push_back(meaningless("hub_always_push", group, kBool, kNoHub));

  const auto proof = OptionGroup::proof;
  rows.push_back(refused("debug", proof, kText, {""}, kLater));
  rows.push_back(refused("hash_steps", proof, kInt, {0}, kLater));
  rows.push_back(
      meaningless("skip_memory_metrics", proof, kBool, "memory is planned, not measured"));
}

/// Names of older and rarer arguments, of TRL's command and of Hugging Face's example scripts.
void append_rare(Rows& rows) {
  const auto ignore = [&](OptionGroup group, std::string_view why,
                          std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      rows.push_back(meaningless(name, group, kText, why).alone_means("true"));
    }
  };
  const auto refuse = [&](OptionGroup group, std::string_view why,
                          std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      rows.push_back(refused(name, group, kBool, {false}, why));
    }
  };
  ignore(OptionGroup::output, "evaluation keeps sums, not predictions",
         {"past_index", "label_names", "eval_do_concat_batches", "eval_use_gather_object",
          "batch_eval_metrics", "include_for_metrics", "include_inputs_for_metrics",
          "use_legacy_prediction_loop", "generation_max_length", "generation_num_beams"});
  ignore(OptionGroup::output, kNoTracker, {"project", "trackio_space_id"});
  ignore(OptionGroup::output, kNoHub,
         {"push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token"});
  ignore(OptionGroup::layout, kKernels, {"use_ipex", "torchdynamo", "jit_mode_eval"});
  ignore(OptionGroup::layout, "there is no such device",
         {"tpu_num_cores", "tpu_metrics_debug", "xpu_backend", "mp_parameters"});
  ignore(OptionGroup::layout, "there is no search", {"ray_scope"});
  ignore(OptionGroup::layout, kNoDdp, {"ddp_static_graph"});
  ignore(OptionGroup::layout, kOwnSlice, {"low_cpu_mem_usage"});
  ignore(OptionGroup::numbers, "fp16 is off", {"half_precision_backend", "fp16_backend"});
  ignore(OptionGroup::model, "training keeps no keys and values", {"use_cache"});
  ignore(OptionGroup::model, "nothing is downloaded", {"cache_dir", "token"});
  ignore(OptionGroup::model, "there is one tokenizer, a fast one", {"use_fast_tokenizer"});
  ignore(OptionGroup::data, "rows are read in chunks, by all cores", {"dataset_num_proc"});
  ignore(OptionGroup::data, "every rank reads the file itself", {"dispatch_batches"});

  refuse(OptionGroup::layout, "not supported; there is no MPS", {"use_mps_device"});
  refuse(OptionGroup::data, kLater, {"sortish_sampler", "predict_with_generate"});
  refuse(OptionGroup::data, "not supported; a batch size is that of a rank", {"split_batches"});
  refuse(OptionGroup::model, kLater, {"use_peft", "load_in_4bit", "load_in_8bit"});
  refuse(OptionGroup::layout, kNoOffload, {"activation_offloading"});
  for (const std::string_view name : {"tokenizer_name", "config_name", "pad_token"}) {
    rows.push_back(refused(name, OptionGroup::model, kText, {""},
                           "not supported yet; what the model folder holds is used"));
  }
  rows.push_back(refused("model_revision", OptionGroup::model, kText, {"main"},
                         "not supported; name the model folder"));
  for (const std::string_view name : {"dataset_name", "dataset_config", "dataset_config_name"}) {
    rows.push_back(refused(name, OptionGroup::data, kText, {""}, kUseDataPath));
  }
  rows.push_back(refused("block_size", OptionGroup::data, kInt, {},
                         "not supported; give --max_seq_length, --packing and --packing_strategy "
                         "wrapped"));
  for (const std::string_view name : {"max_train_samples", "max_eval_samples"}) {
    rows.push_back(refused(name, OptionGroup::data, kInt, {}, kLater));
  }
}

}  // namespace

void append_other_names(std::vector<Option>& rows) {
  append_model(rows);
  append_data(rows);
  append_training(rows);
  append_layout(rows);
  append_output(rows);
  append_rare(rows);
}

}  // namespace trireme::config::build
