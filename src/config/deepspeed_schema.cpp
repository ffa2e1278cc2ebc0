// The keys of a DeepSpeed configuration, as DeepSpeed 0.19 reads them, and what each does here.
#include "config/deepspeed.h"

namespace trireme::config {
namespace {

constexpr std::string_view kUseBf16 = "not supported; bf16.enabled needs no loss scale";
constexpr std::string_view kFp16Off = "fp16 is off";
constexpr std::string_view kObserved =
    "not supported yet, and the results are the same; metrics.jsonl has every update";
constexpr std::string_view kNotOffloaded = "device is none";
constexpr std::string_view kWholeUnits = "units are gathered and reduced whole, from flat buffers";
constexpr std::string_view kCheckpoints = "checkpoints are written by all ranks and published last";
constexpr std::string_view kRecompute = "--recompute or --gradient_checkpointing says what is kept";

void add_batch_and_optimizer(Schema& schema) {
  schema.honour("train_batch_size", "train_batch_size");
  schema.honour("train_micro_batch_size_per_gpu", "per_device_train_batch_size");
  schema.honour("gradient_accumulation_steps", "gradient_accumulation_steps");
  schema.refuse("managed_gradient_accumulation", kBool, {true}, kLater);
  schema.honour("gradient_clipping", "max_grad_norm");

  schema.honour_in_code("optimizer.type", kText, "Adam and AdamW are --optim adamw, SGD is sgd");
  schema.honour("optimizer.params.lr", "learning_rate");
  schema.honour_in_code("optimizer.params.betas", kJson, "--adam_beta1 and --adam_beta2");
  schema.honour("optimizer.params.eps", "adam_epsilon");
  schema.honour("optimizer.params.weight_decay", "weight_decay");
  schema.ignore("optimizer.params.torch_adam", kBool, "there is one AdamW");
  schema.ignore("optimizer.params.fused", kBool, "there is one AdamW");
  schema.refuse("optimizer.params.adam_w_mode", kBool, {true},
                "not supported; weight decay is always decoupled");
  schema.refuse("optimizer.params.bias_correction", kBool, {true}, kLater);
  schema.refuse("optimizer.params.amsgrad", kBool, {false}, kLater);
  schema.refuse("optimizer.params.momentum", kReal, {0}, kLater);
  schema.refuse("optimizer.params.nesterov", kBool, {false}, kLater);
  schema.refuse("optimizer.params.max_grad_norm", kReal, {0},
                "not read here; give gradient_clipping");
  schema.ignore("optimizer.legacy_fusion", kBool, "there is one AdamW");
  schema.ignore("zero_allow_untested_optimizer", kBool, "every optimizer here runs at every stage");
  schema.ignore("zero_force_ds_cpu_optimizer", kBool, "nothing is offloaded");

  schema.honour_in_code("scheduler.type", kText,
                        "WarmupLR, WarmupDecayLR and WarmupCosineLR are --lr_scheduler_type of "
                        "those names, update by update as DeepSpeed has them");
  schema.honour("scheduler.params.warmup_max_lr", "learning_rate");
  schema.honour("scheduler.params.warmup_num_steps", "warmup_steps");
  for (const std::string_view path :
       {"scheduler.params.warmup_min_lr", "scheduler.params.warmup_type",
        "scheduler.params.total_num_steps", "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio"}) {
    schema.honour_in_code(path, kReal, "`--lr_scheduler_kwargs`");
  }
}

void add_numbers(Schema& schema) {
  schema.honour("bf16.enabled", "bf16");
  schema.ignore("bf16.immediate_grad_update", kBool,
                "gradients are always added where they are made");
  schema.ignore("bf16.check_grad_overflow", kBool, "gradients are always checked");
  schema.honour_in_code(
      "bf16.bf16_master_weights_and_grads", kBool,
      "`--master_dtype`: true is bfloat16, stochastically rounded; gradients stay "
      "fp32");
  schema.honour_in_code("bf16.bf16_optimizer_states", kBool,
                        "`--moment_dtype`: true is bfloat16, stochastically rounded");

  schema.refuse("fp16.enabled", kBool, {false}, kUseBf16);
  schema.ignore("fp16.auto_cast", kBool, kFp16Off);
  schema.ignore("fp16.loss_scale", kReal, kFp16Off);
  schema.ignore("fp16.initial_scale_power", kInt, kFp16Off);
  schema.ignore("fp16.loss_scale_window", kInt, kFp16Off);
  schema.ignore("fp16.hysteresis", kInt, kFp16Off);
  schema.ignore("fp16.consecutive_hysteresis", kBool, kFp16Off);
  schema.ignore("fp16.min_loss_scale", kReal, kFp16Off);
  schema.ignore("fp16.fp16_master_weights_and_grads", kBool, kFp16Off);
  schema.refuse("amp.enabled", kBool, {false}, kUseBf16);
  schema.ignore("amp.opt_level", kText, "amp is off");
  schema.refuse("torch_autocast.enabled", kBool, {false}, kLater);
  schema.ignore("torch_autocast.dtype", kText, "torch_autocast is off");
  schema.ignore("torch_autocast.lower_precision_safe_modules", kJson, "torch_autocast is off");

  schema.refuse("data_types.grad_accum_dtype", kText, {"fp32", "float32"}, kAllFp32);
  schema.refuse("data_types.param_dtype", kText, {"fp32", "float32"}, kAllFp32);
  schema.refuse("data_types.buffer_dtype", kText, {"fp32", "float32"}, kLater);
  schema.honour("communication_data_type", "reduce_dtype");
  schema.ignore("seq_parallel_communication_data_type", kText, "sequences are not split");
  schema.ignore("prescale_gradients", kBool,
                "gradients are summed undivided in fp32 and divided once", {false});
  schema.ignore("gradient_predivide_factor", kReal,
                "gradients are summed undivided in fp32 and divided once", {1.0});
  schema.refuse("gradient_allreduce_op", kText, {"mean"}, kLater);
  schema.ignore("sparse_gradients", kBool, "the embedding's gradient is reduced with its unit",
                {false});
  schema.refuse("disable_allgather", kBool, {false}, kLater);
}

void add_zero(Schema& schema) {
  schema.honour("zero_optimization.stage", "zero_stage");
  schema.honour("zero_optimization.overlap_comm", "overlap_comm");
  schema.honour("zero_optimization.reduce_bucket_size", "reduce_bucket_size");
  schema.honour("zero_optimization.sub_group_size", "sub_group_size");
  schema.honour("zero_optimization.stage3_prefetch_bucket_size", "stage3_prefetch_bucket_size");
  schema.honour("zero_optimization.stage3_param_persistence_threshold",
                "stage3_param_persistence_threshold");
  schema.honour("zero_optimization.stage3_max_live_parameters", "stage3_max_live_parameters");
  schema.honour("zero_optimization.stage3_max_reuse_distance", "stage3_max_reuse_distance");
  schema.ignore("zero_optimization.contiguous_gradients", kBool,
                "the gradients of a unit always lie in one buffer", {true});
  schema.ignore("zero_optimization.reduce_scatter", kBool,
                "sharded gradients are always reduce-scattered", {true});
  schema.ignore("zero_optimization.use_multi_rank_bucket_allreduce", kBool,
                "sharded gradients are always reduce-scattered", {true});
  schema.ignore("zero_optimization.allgather_partitions", kBool, kWholeUnits, {true});
  schema.ignore("zero_optimization.allgather_bucket_size", kInt, kWholeUnits);
  schema.ignore("zero_optimization.round_robin_gradients", kBool, kWholeUnits, {false});
  schema.ignore("zero_optimization.stage3_module_granularity_threshold", kInt, kWholeUnits);
  schema.ignore("zero_optimization.stage3_use_all_reduce_for_fetch_params", kBool, kWholeUnits);
  schema.ignore("zero_optimization.stage3_allgather_sequential", kBool, kWholeUnits);
  schema.ignore("zero_optimization.leaf_module.classes", kJson, kWholeUnits);
  schema.ignore("zero_optimization.leaf_module.names", kJson, kWholeUnits);
  schema.ignore("zero_optimization.leaf_module.name_suffixes", kJson, kWholeUnits);
  schema.refuse("zero_optimization.load_from_fp32_weights", kBool, {true},
                "not supported; checkpoints hold fp32 masters and are loaded from them");
  schema.ignore("zero_optimization.elastic_checkpoint", kBool,
                "every checkpoint loads on any number of ranks");
  schema.ignore("zero_optimization.pipeline_loading_checkpoint", kBool, kCheckpoints);
  schema.ignore("zero_optimization.stage3_gather_16bit_weights_on_model_save", kBool,
                "the Hugging Face weights are always written whole", {true});
  schema.ignore("zero_optimization.ignore_unused_parameters", kBool,
                "a parameter without a gradient is known before the run");
  schema.refuse("zero_optimization.stage3_model_persistence_threshold", kInt, {},
                "not supported yet; stage3_param_persistence_threshold bounds what stays");
  schema.ignore("zero_optimization.memory_efficient_linear", kBool,
                "weight gradients are always added in place");
  schema.ignore("zero_optimization.override_module_apply", kBool, "there are no modules");
  schema.ignore("zero_optimization.log_trace_cache_warnings", kBool,
                "the order of units is known before the run");
  schema.ignore("zero_optimization.enable_sanity_checks", kBool,
                "the program is always verified before the run");
  schema.ignore("zero_optimization.save_muon_momentum_buffer_in_memory", kBool, "muon is not here");
  schema.refuse("zero_optimization.legacy_stage1", kBool, {false}, "not supported");
}

void add_zero_plus(Schema& schema) {
  schema.refuse("zero_optimization.zero_hpz_partition_size", kInt, {1}, kLater);
  schema.refuse("zero_optimization.zero_quantized_weights", kBool, {false}, kLater);
  schema.refuse("zero_optimization.zero_quantized_nontrainable_weights", kBool, {false}, kLater);
  schema.refuse("zero_optimization.zero_quantized_gradients", kBool, {false}, kLater);
  schema.refuse("zero_optimization.zeropp_loco_param", kJson, {Json::object()}, kLater);
  schema.honour_in_code("zero_optimization.mics_shard_size", kInt,
                        "`--shard_group_size`; -1: all data ranks");
  schema.refuse("zero_optimization.mics_hierarchical_params_gather", kBool, {false}, kLater);
  schema.refuse("zero_optimization.zenflow", kJson, {Json::object()}, kLater);

  schema.refuse("zero_optimization.cpu_offload", kBool, {false}, kNoOffload);
  schema.refuse("zero_optimization.cpu_offload_params", kBool, {false}, kNoOffload);
  schema.ignore("zero_optimization.cpu_offload_use_pin_memory", kBool, "nothing is offloaded");
  schema.refuse("zero_optimization.offload_param.device", kText, {"none"}, kNoOffload);
  schema.ignore("zero_optimization.offload_param.nvme_path", kText, kNotOffloaded);
  schema.ignore("zero_optimization.offload_param.buffer_count", kInt, kNotOffloaded);
  schema.ignore("zero_optimization.offload_param.buffer_size", kInt, kNotOffloaded);
  schema.ignore("zero_optimization.offload_param.max_in_cpu", kInt, kNotOffloaded);
  schema.ignore("zero_optimization.offload_param.pin_memory", kBool, kNotOffloaded);
  schema.refuse("zero_optimization.offload_optimizer.device", kText, {"none"}, kNoOffload);
  schema.ignore("zero_optimization.offload_optimizer.nvme_path", kText, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.buffer_count", kInt, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.pin_memory", kBool, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.pipeline_read", kBool, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.pipeline_write", kBool, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.fast_init", kBool, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.ratio", kReal, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.super_offload", kBool, kNotOffloaded);
  schema.ignore("zero_optimization.offload_optimizer.cpuadam_cores_perc", kReal, kNotOffloaded);
  for (const std::string_view path :
       {"aio.block_size", "aio.queue_depth", "aio.thread_count", "aio.intra_op_parallelism"}) {
    schema.ignore(path, kInt, "nothing is offloaded");
  }
  for (const std::string_view path : {"aio.single_submit", "aio.overlap_events", "aio.use_gds"}) {
    schema.ignore(path, kBool, "nothing is offloaded");
  }
}

void add_parallelism(Schema& schema) {
  schema.honour("pipeline.stages", "pipeline_parallel_size");
  schema.ignore("pipeline.partition", kText,
                "stages are balanced by cost, or cut as --pipeline_layers says");
  schema.ignore("pipeline.seed_layers", kBool, "random weights are the same for every layout");
  schema.ignore("pipeline.activation_checkpoint_interval", kInt, kRecompute);
  schema.ignore("pipeline.use_reentrant", kBool, kRecompute);
  for (const std::string_view path : {"pipeline.pipe_partitioned", "pipeline.grad_partitioned"}) {
    schema.ignore(path, kBool, "what stages send is always split over the tensor ranks");
  }
  constexpr std::string_view kKnownCut = "every model here says how its tensors are split";
  schema.honour_in_code("tensor_parallel.autotp_size", kInt, "`--tensor_parallel_size`, above 0");
  schema.honour("tensor_parallel.tp.tp_size", "tensor_parallel_size");
  schema.ignore("tensor_parallel.tp.tp_grain_size", kInt, kKnownCut);
  schema.ignore("tensor_parallel.tp_overlap_comm", kBool, "--overlap_comm says it for all");
  schema.ignore("tensor_parallel.preset_model", kText, kKnownCut);
  schema.ignore("tensor_parallel.partition_config", kJson, kKnownCut);
  schema.ignore("tensor_parallel.dtype", kText, "--bf16 says it for all");
  schema.refuse("expert_parallel.enabled", kBool, {false}, kLater);
  schema.refuse("expert_parallel.autoep_size", kInt, {1}, kLater);
  schema.refuse("expert_parallel.expert_tensor_parallel_size", kInt, {1}, kLater);
  schema.ignore("expert_parallel.use_grouped_mm", kBool, "there are no experts");
  schema.ignore("use_data_before_expert_parallelism", kBool, "there are no experts");
  schema.refuse("sequence_parallel_size", kInt, {1}, kLater);
  schema.ignore("compile.deepcompile", kBool, "the step is a program already", {false});
  schema.ignore("compile.passes", kJson, "the step is a program already");
  schema.ignore("compile.double_buffer", kBool, "the step is a program already");
  schema.ignore("compile.symmetric_memory", kBool, "the step is a program already");
  schema.refuse("compile.offload_activation", kBool, {false}, kNoOffload);
  schema.refuse("compile.offload_opt_states", kBool, {false}, kNoOffload);
  schema.refuse("compile.offload_parameters", kBool, {false}, kNoOffload);
  schema.refuse("hybrid_engine.enabled", kBool, {false}, kLater);
  schema.ignore("activation_checkpointing.partition_activations", kBool, kRecompute, {false});
  schema.ignore("activation_checkpointing.cpu_checkpointing", kBool, kRecompute, {false});
  schema.ignore("activation_checkpointing.contiguous_memory_optimization", kBool, kRecompute,
                {false});
  schema.ignore("activation_checkpointing.number_checkpoints", kInt, kRecompute);
  schema.ignore("activation_checkpointing.synchronize_checkpoint_boundary", kBool, kRecompute,
                {false});
  schema.ignore("activation_checkpointing.profile", kBool, kRecompute, {false});
}

void add_watching(Schema& schema) {
  schema.ignore("steps_per_print", kInt, "--logging_steps says how often lines are printed");
  schema.ignore("wall_clock_breakdown", kBool, kObserved, {false});
  schema.ignore("memory_breakdown", kBool, "memory is planned before the run and printed by owner",
                {false});
  schema.ignore("dump_state", kBool, "the effective configuration is always saved with the run",
                {false});
  schema.ignore("log_level", kText, "there is one level of messages");
  schema.ignore("graph_harvesting", kBool, "the step is a program already");
  schema.refuse(
      "dataloader_drop_last", kBool, {false},
      "not supported yet; every sample is dealt, and short ranks run empty micro-batches");
  for (const std::string_view path :
       {"tensorboard.enabled", "tensorboard.output_path", "tensorboard.job_name"}) {
    schema.honour_in_code(path, kText, "`--monitor_tensorboard_dir` output_path/job_name");
  }
  for (const std::string_view path :
       {"csv_monitor.enabled", "csv_monitor.output_path", "csv_monitor.job_name"}) {
    schema.honour_in_code(path, kText, "`--monitor_csv_dir` output_path/job_name");
  }
  schema.ignore("wandb.enabled", kBool, kObserved, {false});
  schema.ignore("wandb.group", kText, kObserved);
  schema.ignore("wandb.team", kText, kObserved);
  schema.ignore("wandb.project", kText, kObserved);
  schema.ignore("comet.enabled", kBool, kObserved, {false});
  schema.ignore("comet.samples_log_interval", kInt, kObserved);
  schema.ignore("comet.project", kText, kObserved);
  schema.ignore("comet.workspace", kText, kObserved);
  schema.ignore("comet.experiment_name", kText, kObserved);
  schema.ignore("flops_profiler.enabled", kBool, kObserved, {false});
  schema.ignore("flops_profiler.recompute_fwd_factor", kReal, kObserved);
  schema.ignore("flops_profiler.profile_step", kInt, kObserved);
  schema.ignore("flops_profiler.module_depth", kInt, kObserved);
  schema.ignore("flops_profiler.top_modules", kInt, kObserved);
  schema.ignore("flops_profiler.detailed", kBool, kObserved);
  schema.ignore("flops_profiler.output_file", kText, kObserved);
  schema.ignore("comms_logger.enabled", kBool, kObserved, {false});
  schema.ignore("comms_logger.verbose", kBool, kObserved);
  schema.ignore("comms_logger.prof_all", kBool, kObserved);
  schema.ignore("comms_logger.prof_ops", kJson, kObserved);
  schema.ignore("comms_logger.debug", kBool, kObserved);
}

void add_checkpoint_and_search(Schema& schema) {
  schema.ignore("checkpoint.tag_validation", kText, kCheckpoints);
  schema.refuse("checkpoint.load_universal", kBool, {false},
                "not supported yet; our checkpoints load on any layout without conversion");
  schema.refuse("checkpoint.use_node_local_storage", kBool, {false}, kLater);
  schema.ignore("checkpoint.parallel_write.pipeline_stage", kBool, kCheckpoints, {false});
  schema.ignore("checkpoint.checkpoint_serialization", kBool, kCheckpoints);
  schema.ignore("checkpoint.writer.type", kText, kCheckpoints);
  schema.ignore("checkpoint.writer.decoupled", kBool, kCheckpoints);
  schema.ignore("checkpoint.writer.io_buffer_size", kInt, kCheckpoints);
  schema.ignore("checkpoint.writer.io_buffer_double", kBool, kCheckpoints);
  schema.ignore("checkpoint.writer.io_multiplier", kInt, kCheckpoints);
  schema.ignore("checkpoint.writer.data_parallel", kText, kCheckpoints);
  schema.ignore("checkpoint.writer.show_statistics", kBool, kCheckpoints);

  constexpr std::string_view kNotElastic = "elasticity is off";
  schema.refuse("elasticity.enabled", kBool, {false}, kLater);
  schema.ignore("elasticity.max_train_batch_size", kInt, kNotElastic);
  schema.ignore("elasticity.micro_batch_sizes", kJson, kNotElastic);
  schema.ignore("elasticity.min_gpus", kInt, kNotElastic);
  schema.ignore("elasticity.max_gpus", kInt, kNotElastic);
  schema.ignore("elasticity.min_time", kInt, kNotElastic);
  schema.ignore("elasticity.version", kReal, kNotElastic);
  schema.ignore("elasticity.prefer_larger_batch", kBool, kNotElastic);
  schema.ignore("elasticity.prefer_large_batch", kBool, kNotElastic);
  schema.ignore("elasticity.ignore_non_elastic_batch_info", kBool, kNotElastic);
  schema.ignore("elasticity.num_gpus_per_node", kInt, kNotElastic);
  schema.ignore("elasticity.model_parallel_size", kInt, kNotElastic);

  constexpr std::string_view kNotTuned = "autotuning is off; trireme plan needs no trial runs";
  schema.refuse("autotuning.enabled", kBool, {false},
                "not supported; trireme plan says what fits without trial runs");
  for (const std::string_view path :
       {"autotuning.start_profile_step", "autotuning.end_profile_step", "autotuning.num_trials",
        "autotuning.tuner_num_trials", "autotuning.tuner_early_stopping",
        "autotuning.num_tuning_micro_batch_sizes", "autotuning.mp_size"}) {
    schema.ignore(path, kInt, kNotTuned);
  }
  schema.ignore("autotuning.fast", kBool, kNotTuned);
  schema.ignore("autotuning.overwrite", kBool, kNotTuned);
  schema.ignore("autotuning.metric", kText, kNotTuned);
  schema.ignore("autotuning.tuner_type", kText, kNotTuned);
  schema.ignore("autotuning.results_dir", kText, kNotTuned);
  schema.ignore("autotuning.exps_dir", kText, kNotTuned);
  schema.ignore("autotuning.arg_mappings", kJson, kNotTuned);
}

void add_aliases(Schema& schema) {
  schema.alias("bfloat16", "bf16");
  schema.alias("zero_optimization.prefetch_bucket_size",
               "zero_optimization.stage3_prefetch_bucket_size");
  schema.alias("zero_optimization.param_persistence_threshold",
               "zero_optimization.stage3_param_persistence_threshold");
  schema.alias("zero_optimization.model_persistence_threshold",
               "zero_optimization.stage3_model_persistence_threshold");
  schema.alias("zero_optimization.max_live_parameters",
               "zero_optimization.stage3_max_live_parameters");
  schema.alias("zero_optimization.max_reuse_distance",
               "zero_optimization.stage3_max_reuse_distance");
  schema.alias("zero_optimization.gather_16bit_weights_on_model_save",
               "zero_optimization.stage3_gather_16bit_weights_on_model_save");
  schema.alias("zero_optimization.stage3_gather_fp16_weights_on_model_save",
               "zero_optimization.stage3_gather_16bit_weights_on_model_save");
  schema.alias("zero_optimization.module_granularity_threshold",
               "zero_optimization.stage3_module_granularity_threshold");
}

}  // namespace

Schema deepspeed_schema() {
  Schema schema;
  add_batch_and_optimizer(schema);
  add_numbers(schema);
  add_zero(schema);
  add_zero_plus(schema);
  add_parallelism(schema);
  add_watching(schema);
  add_checkpoint_and_search(schema);
  add_aliases(schema);
  return schema;
}

}  // namespace trireme::config
