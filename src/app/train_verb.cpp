#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "app/job.h"
#include "app/verbs.h"
#include "checkpoint/folders.h"
#include "config/parse.h"
#include "config/print.h"
#include "launch/ranks.h"
#include "train/output_lock.h"
#include "train/run.h"
#include "train/run_files.h"
#include "train/state_sources.h"

namespace trireme::app {

namespace {

/// A job that its launcher starts again goes on where it was, as if told to.
void resume_after_restart(config::ParseResult& parsed) {
  std::string& resume = parsed.config.resume_from_checkpoint;
  const std::string& output_dir = parsed.config.output_dir;
  if (!resume.empty()) return;
  if (checkpoint::folders_of_run(output_dir, checkpoint::current_run(output_dir), true).empty()) {
    return;
  }
  resume = "true";
  parsed.notices.push_back(
      "resume_from_checkpoint is true: the launcher has started this job again");
}

/// Whether a run starts afresh where others have left checkpoints.
bool leaves_checkpoints_behind(const config::RunConfig& config) {
  return config.resume_from_checkpoint.empty() &&
         !checkpoint::list_folders(config.output_dir).empty();
}

/// What a run that starts afresh reads its weights from. DataError when they are not the model's.
void check_weights(const config::RunConfig& config, const model::ModelGraph& model) {
  if (config.init_from_config || !config.resume_from_checkpoint.empty()) return;
  train::FolderSource(config.model_name_or_path, model);
}

}  // namespace

int train_verb(Arguments args) {
  train::StartTimes times;
  config::ParseSettings settings;
  settings.environment = launch::process_environment();
  config::ParseResult parsed = config::parse(args, settings);
  if (parsed.help) {
    std::fputs(config::help_text().c_str(), stdout);
    return 0;
  }
  const launch::Ranks ranks = launch::discover_ranks(settings.environment);
  if (launch::restart_count(settings.environment) > 0) resume_after_restart(parsed);
  train::check_output_dir("output_dir", parsed.config.output_dir);
  const model::ModelGraph model = train::resolve_model(parsed, ranks.world_size);
  check_weights(parsed.config, model);
  OpeningMachine opening(parsed.config, ranks.local_rank);
  std::optional<train::OutputLock> lock;
  if (ranks.rank == 0 && leaves_checkpoints_behind(parsed.config)) {
    // At once: it may die while it reads data or waits for others, and whoever starts it again, to
    // go on, must not get an earlier run.
    lock.emplace(parsed.config.output_dir);
    train::take_over(parsed.config.output_dir, checkpoint::new_run_id());
  }
  times.end("configuration");
  // Data are read and checked before any rank waits for another.
  train::RunRows rows = train::read_rows(parsed.config, model.config);
  times.end("data");
  Machine machine = opening.get();
  times.end("waiting for the device");
  if (!machine.cuda && parsed.config.deterministic == config::Deterministic::no) {
    parsed.notices.push_back(
        "deterministic = false has no effect: on the CPU the same layout always gives the same "
        "bits");
  }
  if (!machine.cuda && parsed.config.algorithm_cache != "auto") {
    parsed.notices.push_back(
        "algorithm_cache has no effect: on the CPU no algorithms are measured");
  }
  std::error_code ignored;
  if (!parsed.config.init_from_config &&
      std::filesystem::equivalent(parsed.config.model_name_or_path, parsed.config.output_dir,
                                  ignored)) {
    parsed.notices.push_back(
        "output_dir is the folder of model_name_or_path: at the end the trained model replaces its "
        "weights");
  }
  const mesh::Layout layout = config::layout_of(parsed.config, ranks.world_size);
  train::RunData data(parsed.config, std::move(rows), layout.dp,
                      mesh::coordinates_of(layout, ranks.rank).dp,
                      machine.token_multiple * layout.tp);
  const bool deterministic = repeats_bits(parsed.config, model, data.capacity().longest);
  Job job = join_job(machine, ranks, parsed.config, deterministic);
  if (ranks.rank == 0 && !lock) lock.emplace(parsed.config.output_dir);
  times.end("ranks and device");
  train::run_training(parsed, model, data, *job.backend, *job.ranks, std::move(times));
  return 0;
}

}  // namespace trireme::app
