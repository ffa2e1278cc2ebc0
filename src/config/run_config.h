// One checked structure for everything a run is told. Names are Hugging Face's where there is one.
// Filled by the option table (option.h) from flags and a DeepSpeed JSON; printed back in full.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/layout.h"

namespace trireme::config {

enum class Scheduler {
  linear,
  cosine,
  cosine_with_restarts,
  polynomial,
  constant,
  constant_with_warmup,
  inverse_sqrt,
  cosine_with_min_lr,
  cosine_warmup_with_min_lr,
  warmup_stable_decay,
  // DeepSpeed's
  warmup_lr,
  warmup_decay_lr,
  warmup_cosine_lr,
};
enum class Curve { linear, cosine, one_minus_sqrt, log };
enum class Optimizer { adamw, sgd };
enum class Strategy { no, steps, epoch };
enum class SaveStrategy { no, steps, epoch, best };
enum class Sampling { random, sequential };
enum class Recompute { none, norms, activation, ffn, qkv, attention, block };
enum class ReduceAt { automatic, micro, boundary };
enum class OnLong { truncate, skip, error };
/// best_fit: samples stay whole (data/packing.h). wrapped: blocks of all tokens laid end to end
/// (data/dataset.h).
enum class PackingStrategy { best_fit, wrapped };
enum class DeviceChoice { automatic, cpu, cuda };
enum class Deterministic { automatic, yes, no };
enum class Precision { float32, bfloat16 };
/// plan/schedule.h says what each does.
enum class PipelineSchedule { one_f_one_b, interleaved, zero_bubble };

/// "LEVEL" for all blocks, or "LEVEL:n,LEVEL:m": n blocks from the front, then m, ...
struct RecomputeSpan {
  Recompute level = Recompute::none;
  int64_t blocks = -1;  // -1: all that remain
};

inline constexpr int64_t kShardGroupHost = -1;

/// Steps `first` to `last`, counted from 1; 0 to 0: none.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
  bool empty() const { return last == 0; }
  bool operator==(const StepRange&) const = default;
};

/// ZeRO as DeepSpeed's keys say it, in elements, on units (design section 4).
struct ZeroConfig {
  int stage = 0;
  /// `stage3_prefetch_bucket_size`: how far ahead units are gathered; nullopt = one unit. 0 = none.
  std::optional<int64_t> prefetch_bucket_size;
  /// `stage3_max_live_parameters`: gathered parameters at one time; nullopt = our best choice.
  std::optional<int64_t> max_live_parameters;
  /// `reduce_bucket_size`: a unit's reduce whole (nullopt) or in grouped pieces of this size.
  std::optional<int64_t> reduce_bucket_size;
  /// `stage3_param_persistence_threshold`: tensors of at most this many elements stay gathered.
  /// kPersistenceAuto until resolve() makes it 10 x hidden_size.
  static constexpr int64_t kPersistenceAuto = -1;
  int64_t param_persistence_threshold = 0;
  /// `stage3_max_reuse_distance`: units used again within this many elements of others stay
  /// gathered; nullopt = where that costs no memory.
  std::optional<int64_t> max_reuse_distance;
  /// `sub_group_size`: optimizer tile; nullopt = whole slice.
  std::optional<int64_t> sub_group_size;
  bool overlap_comm = true;
};

/// `lr_scheduler_kwargs` (schedule.h says which scheduler takes what); what is absent has the
/// scheduler's default.
struct SchedulerKwargs {
  std::optional<double> num_cycles;
  std::optional<double> lr_end;
  std::optional<double> power;
  std::optional<double> timescale;
  std::optional<double> min_lr;
  std::optional<double> min_lr_rate;
  std::optional<double> warmup_lr_rate;
  std::optional<int64_t> num_decay_steps;
  std::optional<int64_t> num_stable_steps;
  std::optional<double> min_lr_ratio;
  std::optional<Curve> warmup_type;
  std::optional<Curve> decay_type;
  std::optional<double> warmup_min_lr;
  std::optional<double> warmup_min_ratio;
  std::optional<double> cos_min_ratio;
  std::optional<int64_t> total_num_steps;
};

/// Updates of the longest run: host and device keep a learning rate for each.
inline constexpr int64_t kMaxUpdates = 100'000'000;

struct RunConfig {
  // model and data
  std::string model_name_or_path;
  bool init_from_config = false;
  std::string data_path;
  std::string eval_path;
  std::string output_dir = "trainer_output";
  int64_t max_seq_length = 0;  // 0: the model's, at most 4096 (filled by resolve)
  OnLong on_long = OnLong::truncate;
  std::optional<bool> completion_only_loss;  // unset: of rows with a prompt
  bool packing = false;
  PackingStrategy packing_strategy = PackingStrategy::best_fit;
  std::optional<bool> eval_packing;  // as `packing` (filled by resolve)
  Sampling train_sampling_strategy = Sampling::random;
  int64_t seed = 42;
  std::optional<int64_t> data_seed;
  bool even_batches = false;

  // steps
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  int64_t train_batch_size = 0;  // micro x accumulation x data ranks (filled by resolve)
  double num_train_epochs = 3.0;
  int64_t max_steps = -1;

  // optimizer and schedule
  Optimizer optim = Optimizer::adamw;
  double learning_rate = 5e-5;
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
  Scheduler lr_scheduler_type = Scheduler::linear;
  SchedulerKwargs lr_scheduler_kwargs;
  double warmup_steps = 0;  // integer >= 1: steps; in [0, 1): share of all steps (rounded up)
  int64_t max_consecutive_skips = 10;

  // numbers
  bool bf16 = false;
  /// What the optimizer keeps; bfloat16 only with bf16.
  Precision master_dtype = Precision::float32;
  Precision moment_dtype = Precision::float32;
  /// What gradients travel as between data ranks; their sums are float32 in either case.
  Precision reduce_dtype = Precision::float32;
  /// Gradients of attention on GPUs that repeat bit for bit; automatic: where they cost little.
  Deterministic deterministic = Deterministic::automatic;

  // layout
  DeviceChoice device = DeviceChoice::automatic;
  // Path or text of what was read; empty: none. What it says is in the other fields.
  std::string deepspeed;
  std::vector<std::string> fsdp;  // words
  std::string fsdp_config;
  std::string parallelism_config;
  std::string accelerate_config;
  int64_t tensor_parallel_size = 1;
  int64_t pipeline_parallel_size = 1;
  int64_t virtual_pipeline_size = 1;  // virtual stages of a rank
  PipelineSchedule pipeline_schedule = PipelineSchedule::one_f_one_b;
  std::vector<int64_t> pipeline_layers;  // blocks of each virtual stage; empty: balanced by cost
  mesh::RankOrder rank_order = mesh::RankOrder::tp_dp_pp;
  ZeroConfig zero;
  /// Ranks that share one copy of the state; 0: all data ranks. kShardGroupHost until resolve().
  int64_t shard_group_size = 0;
  int64_t dp_replicate_size = 0;             // copies of the state; 0: as many as follow
  ReduceAt reduce_at = ReduceAt::automatic;  // automatic: until resolve
  bool gradient_checkpointing = false;       // recompute = block unless `recompute` is given
  std::vector<RecomputeSpan> recompute;      // from the front; blocks beyond the spans: none
  int64_t ddp_timeout = 1800;                // seconds a collective may take
  std::string algorithm_cache = "auto";      // folder; auto: the user's; "none"

  // saving, logging, evaluation
  SaveStrategy save_strategy = SaveStrategy::steps;
  double save_steps = 500;       // integer >= 1, or a share of all steps in (0, 1)
  int64_t save_total_limit = 0;  // 0: keep all
  bool save_only_model = false;
  std::string resume_from_checkpoint;  // empty, "true" (the last one), or a folder
  Strategy logging_strategy = Strategy::steps;
  double logging_steps = 500;
  bool logging_first_step = false;
  Strategy eval_strategy = Strategy::no;
  double eval_steps = 0;  // 0: logging_steps (filled by resolve)
  double eval_delay = 0;  // steps or epochs, as eval_strategy counts
  bool eval_on_start = false;
  bool do_eval = false;                 // also the trained model, at the end
  bool load_best_model_at_end = false;  // the one with the lowest eval_loss
  std::vector<std::string> report_to;   // "tensorboard", and "jsonl", which is always on
  std::string logging_dir;              // of TensorBoard's events; empty: runs/... in output_dir
  std::string monitor_tensorboard_dir;  // DeepSpeed's monitors; empty: none
  std::string monitor_csv_dir;
  bool disable_tqdm = false;  // plain lines also on a terminal

  bool packs_evaluation() const { return eval_packing.value_or(packing); }
  bool evaluates() const { return eval_strategy != Strategy::no || eval_on_start || do_eval; }

  // proof and debugging
  StepRange profile_steps;          // traced into output_dir
  bool debug_poison = false;        // released memory is filled with NaN
  int64_t debug_comm_delay_ms = 0;  // every collective starts this much later
};

}  // namespace trireme::config
