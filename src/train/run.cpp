#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "config/print.h"
#include "config/schedule.h"
#include "metrics/reporter.h"
#include "metrics/text.h"
#include "model/hub_cache.h"
#include "train/algorithms.h"
#include "train/memory_text.h"
#include "train/pace.h"
#include "train/run_facts.h"
#include "train/run_files.h"
#include "train/run_identity.h"
#include "train/session.h"
#include "train/state_sources.h"
#include "train/step_trace.h"

namespace trireme::train {

namespace {

using config::RunConfig;
using config::SaveStrategy;
using ops::Control;

class Run {
 public:
  Run(const config::ParseResult& parsed, const model::ModelGraph& model, RunData& data,
      device::Backend& backend, checkpoint::Coordinator& ranks, StartTimes times)
      : parsed_(parsed),
        config_(parsed.config),
        model_(model),
        data_(data),
        pace_(config_, data.plan()),
        backend_(backend),
        ranks_(ranks),
        times_(std::move(times)),
        layout_(config::layout_of(config_, ranks.world_size())),
        run_description_(describe_run(config_, data.training().size(), layout_.dp)),
        trace_(config_, data.total_steps(), backend.device(), model, ranks.rank()),
        session_(make_plan(model), trace_.device(), backend.communicator(), session_options()) {}

  void run() {
    times_.end("memory");
    try {
      train();
    } catch (const checkpoint::AgreedError&) {
      throw;  // nothing is in flight
    } catch (const ConfigError&) {
      throw;  // likewise: every rank finds it
    } catch (const std::exception& error) {
      leave(error.what());
      throw;
    }
  }

 private:
  struct Running {
    exec::Ticket ticket = -1;
    int64_t step = -1;
  };

  void train() {
    start();
    for (int64_t step = first_step_; step < data_.total_steps(); ++step) {
      const auto extents = data_.extents(step);
      trace_.before_step(step + 1);
      const exec::Ticket ticket = session_.step(step, extents);
      report();  // the step before, while this one runs
      if (const auto file = trace_.after_step(step + 1)) say(fmt::format("Trace in {}", *file));
      running_ = {ticket, step};
      const bool best = pace_.evaluates(step + 1) && judge(evaluate());
      if (pace_.saves(step + 1) || (best && config_.save_strategy == SaveStrategy::best)) save();
    }
    finish();
  }

  /// What this rank alone met ends what is in flight, here and on the ranks that wait for it.
  void leave(const std::string& why) {
    backend_.communicator().abort(why);
    try {
      backend_.device().drain();
    } catch (const std::exception&) {
      // Follows from `why`.
    }
  }

  plan::Plan make_plan(const model::ModelGraph& model) {
    plan::PlanRequest request;
    request.config = &config_;
    request.model = &model;
    request.world_size = ranks_.world_size();
    request.rank = ranks_.rank();
    request.capacity = data_.capacity();
    request.rope_positions = std::max<int64_t>(1, request.capacity.longest);
    request.schedule_entries = data_.total_steps() + 1;
    request.accumulations = data_.accumulations();
    request.evaluates = data_.evaluates();
    request.loss_chunk_bytes = backend_.loss_chunk_bytes();
    request.op_sizing = &backend_.op_sizing();
    request.comm_sizing = &backend_.comm_sizing();
    plan::Plan plan = plan::make_plan(request);
    const Json identity = identity_of(config_, data_);
    compare_identities(ranks_, identity);
    run_description_[kSamplesHash] = identity.at(kSamplesHash);
    program_hash_ = compare_programs(ranks_, plan);
    // Before memory is asked for, which may fail: the job, started again, must not go on from what
    // an earlier run left.
    if (config_.resume_from_checkpoint.empty()) begin_run(checkpoint::new_run_id());
    times_.end("plan");
    return plan;
  }

  SessionOptions session_options() {
    SessionOptions options;
    options.schedule = config::schedule_table(config_, data_.total_steps());
    options.fill_train = [this](int64_t step, int64_t batch, const ops::BatchLayout& layout,
                                int32_t* out) { data_.fill(step, batch, layout, out); };
    options.fill_evaluation = [this](int64_t batch, int64_t, const ops::BatchLayout& layout,
                                     int32_t* out) { data_.fill_evaluation(batch, layout, out); };
    options.poison = config_.debug_poison;
    options.observer = trace_.observer();
    return options;
  }

  // Before the first step ------------------------------------------------------------------

  /// The largest micro-batch, and those of the first steps.
  std::vector<ops::Extent> first_extents() {
    std::vector<ops::Extent> extents;
    for (int64_t step = first_step_; step < std::min(first_step_ + 2, data_.total_steps());
         ++step) {
      for (const ops::Extent& extent : data_.extents(step)) {
        if (extent.tokens == 0) continue;
        if (std::find(extents.begin(), extents.end(), extent) == extents.end()) {
          extents.push_back(extent);
        }
      }
    }
    // Where every sequence has the same length so far, nothing is readied for others.
    ops::Extent largest = session_.plan().capacity;
    largest.even = !extents.empty() &&
                   std::ranges::all_of(extents, [](const auto& extent) { return extent.even; });
    if (std::find(extents.begin(), extents.end(), largest) == extents.end()) {
      extents.insert(extents.begin(), largest);
    }
    return extents;
  }

  /// Times differ from run to run: who insists on the same bits gets the libraries' own choice.
  void choose(const std::string& saved) {
    algorithms_ = choose_algorithms(
        session_, backend_, ranks_,
        {first_extents(), saved, config_.deterministic != config::Deterministic::yes});
    times_.end("measuring products");
  }

  /// What needs no weights.
  void prepare() {
    std::vector<ops::Extent> extents = first_extents();
    for (const ops::Extent& extent : data_.common_sizes(backend_.sizes_to_prepare())) {
      extents.push_back(extent);
    }
    session_.for_each_call(extents, [&](const ops::OpCall& call) { backend_.prepare(call); });
    backend_facts_ = backend_.facts();
    times_.end("kernels, while weights load");
  }

  void start() {
    load();
    times_.end("weights");
    metrics::ReporterOptions options;
    options.rank = ranks_.rank();
    options.pace = {config_.logging_strategy, pace_.logging_steps(), config_.logging_first_step};
    options.eval_steps = pace_.eval_steps();
    options.save_steps = pace_.save_steps();
    options.resumed_step = first_step_;
    options.saved_state = saved_state_;
    reporter_.emplace(config_, options);
    if (best_) reporter_->set_best(*best_);
    print_configuration();
    reporter_->begin(facts());
    if (first_step_ >= data_.total_steps()) {
      say(fmt::format("note: nothing is left to train: the checkpoint is at step {} of {}",
                      first_step_, data_.total_steps()));
    }
    print_memory();
    last_end_ = std::chrono::steady_clock::now();
    if (config_.eval_on_start && first_step_ == 0) {
      evaluate();
      times_.end("evaluation");
    }
  }

  void load() {
    if (!config_.resume_from_checkpoint.empty()) {
      const checkpoint::FoundCheckpoint found = load_checkpoint();
      for (const std::string& sentence : found.skipped) say(sentence);
      for (const std::string& sentence :
           differences(found.manifest.state.at("run"), run_description_)) {
        say("resume: " + sentence);
      }
      const std::string converted = conversion(found, session_.plan().state);
      if (!converted.empty()) say("resume: " + converted);
      take_history(found);
      begin_run(found.manifest.run);
      return;
    }
    choose("");
    if (config_.init_from_config) {
      RandomSource source(session_.plan().model.config, static_cast<uint64_t>(config_.seed));
      fill(source, [this] { prepare(); });
    } else {
      FolderSource source(config_.model_name_or_path, session_.plan().model);
      fill(source, [this] { prepare(); });
    }
  }

  /// The state of the checkpoint that was asked for. Files are checked while they are read, so a
  /// damaged one is found when the arenas hold its values: the next one then takes their place.
  checkpoint::FoundCheckpoint load_checkpoint() {
    const auto use = [this](checkpoint::CheckpointReader& reader) {
      CheckpointSource source(reader);
      if (source.only_model()) {
        throw ConfigError("resume_from_checkpoint", source.folder().string(),
                          "it holds only the model (save_only_model); to start from its weights "
                          "give it as --model_name_or_path");
      }
      source.check_fits(model_, config_.optim);
      first_step_ = source.step();
      choose(source.state().value("algorithms", std::string()));
      fill(source, [this] { prepare(); });
    };
    const std::string& asked = config_.resume_from_checkpoint;
    if (asked != "true") {
      return checkpoint::open_named(asked, "resume_from_checkpoint", ranks_, use);
    }
    const auto found = checkpoint::find_newest(config_.output_dir, ranks_, use);
    if (found) return *found;
    const auto others =
        names_of_other_runs(config_.output_dir, checkpoint::current_run(config_.output_dir));
    throw ConfigError("resume_from_checkpoint", "true",
                      fmt::format("there is no checkpoint{} in {}; name one, or leave this out to "
                                  "start afresh",
                                  others.empty() ? ""
                                                 : fmt::format(" of the run that was started last "
                                                               "(only {} of another one)",
                                                               join_some(others, kMaxListed)),
                                  config_.output_dir));
  }

  /// From here on output_dir is this run's.
  void begin_run(const std::string& run) {
    run_ = ranks_.exchange(run)[0];
    std::string problem;
    if (ranks_.rank() == 0) {
      try {
        if (const std::string note = note_on_other_runs(config_.output_dir, run_); !note.empty()) {
          say(note);
        }
        take_over(config_.output_dir, run_);
      } catch (const DeviceError& error) {
        problem = error.what();
      }
    }
    checkpoint::agree(ranks_, "starting the run", problem);
  }

  /// What the run had come to when it saved.
  void take_history(const checkpoint::FoundCheckpoint& found) {
    const Json& state = found.manifest.state;
    evaluated_step_ = state.value("evaluated_step", int64_t{-1});
    if (const Json best = state.value("best", Json()); !best.is_null()) {
      best_ = {best.at("step"), best.at("metric"), best.at("checkpoint")};
      find_best(found);
    }
    const std::filesystem::path file = found.folder / kTrainerState;
    std::error_code ignored;
    if (ranks_.rank() == 0 && std::filesystem::exists(file, ignored)) {
      saved_state_ = read_json(file, {.max_bytes = int64_t{1} << 30});
    }
  }

  /// The best checkpoint may be in another folder than this run's, and another than where it was.
  void find_best(const checkpoint::FoundCheckpoint& found) {
    const bool looks = ranks_.rank() == 0 && !best_->checkpoint.empty();
    const std::string place = ranks_.exchange(
        looks ? find_beside(found, best_->step, best_->checkpoint, config_.output_dir) : "")[0];
    if (!place.empty()) {
      best_->checkpoint = place;
    } else if (config_.load_best_model_at_end) {
      say(
          fmt::format("resume: there is no checkpoint of the best model so far (step {}, eval_loss "
                      "{}); the best is chosen among later ones",
                      best_->step, metrics::significant(best_->metric, 6)));
      best_.reset();
    }
  }

  /// What this rank alone could not read must name it: the others only see that it is gone.
  void fill(StateSource& source, const std::function<void()>& meanwhile = {}) {
    try {
      session_.load(source, meanwhile);
    } catch (const DataError& error) {
      throw DeviceError(fmt::format("rank {}: {}", ranks_.rank(), error.what()));
    }
  }

  metrics::RunFacts facts() const {
    metrics::RunFacts facts = run_facts(config_, data_, session_.plan(), layout_);
    facts.resumed_step = first_step_;
    facts.more.insert(facts.more.begin(), backend_facts_.begin(), backend_facts_.end());
    facts.more.emplace_back("Program hash", fmt::format("{:016x}", program_hash_));
    return facts;
  }

  /// The effective configuration: on the console, and with the run.
  void print_configuration() {
    if (!parsed_.import_table.empty()) say(parsed_.import_table);
    say(config::describe(config_));
    for (const std::string& notice : parsed_.notices) say("note: " + notice);
    for (const std::string& notice : backend_.take_notices()) say("note: " + notice);
    if (ranks_.rank() != 0) return;
    const std::filesystem::path folder = config_.output_dir;
    replace_file(folder / "run_config.json", config::to_json(config_) + "\n");
  }

  void print_memory() const {
    say(memory_text("Planned memory of rank 0", session_.plan(),
                    backend_.memory().expected_besides));
  }

  /// What a GPU holds beside the arenas, once a step has run; nothing may be added later.
  void see_memory() {
    const device::MemoryUse use = backend_.memory();
    if (use.total == 0) return;
    if (besides_ == 0) {
      besides_ = use.besides();
      say(fmt::format(
          "GPU memory: {} of arenas, as planned; {} of context and libraries, {} expected",
          human_bytes(use.arenas), human_bytes(besides_), human_bytes(use.expected_besides)));
    } else if (use.besides() > besides_) {
      say(fmt::format("warning: context and libraries grew by {} after the first step",
                      human_bytes(use.besides() - besides_)));
    }
  }

  /// One line from rank 0.
  void say(const std::string& text) const {
    if (ranks_.rank() != 0) return;
    std::fputs(text.c_str(), stdout);
    if (text.empty() || text.back() != '\n') std::fputc('\n', stdout);
    std::fflush(stdout);
  }

  // Steps ----------------------------------------------------------------------------------

  /// Waits for the running step, records it, and stops a run that no longer learns.
  void report() {
    if (running_.step < 0) return;
    control_ = session_.wait(running_.ticket, running_.step);
    const auto end = session_.end_of(running_.step);
    metrics::StepRecord record;
    record.step = running_.step + 1;
    record.epoch = data_.plan().epoch_after(running_.step);
    record.loss = value(control_, Control::loss);
    record.grad_norm = value(control_, Control::grad_norm);
    record.clip_coef = value(control_, Control::clip_coef);
    record.learning_rate = value(control_, Control::learning_rate);
    record.trained_tokens = static_cast<int64_t>(value(control_, Control::trained_tokens));
    record.input_tokens = data_.tokens_in_step(running_.step);
    record.samples = data_.samples_in_step(running_.step);
    record.step_seconds = std::chrono::duration<double>(end - last_end_).count();
    record.skipped_steps = static_cast<int64_t>(value(control_, Control::skipped_steps));
    record.skipped = value(control_, Control::skip) != 0;
    record.ends_epoch = pace_.ends_epoch(record.step);
    last_end_ = end;
    if (running_.step == first_step_) times_.end("first step", end);
    reporter_->step(record);
    if (running_.step == first_step_) say(times_.text());
    if (besides_ == 0) see_memory();
    running_.step = -1;
    const double skips = value(control_, Control::consecutive_skips);
    if (skips >= static_cast<double>(config_.max_consecutive_skips)) {
      // Every rank stops here; the step in flight needs all of them until it is done.
      backend_.device().drain();
      throw Diverged(
          fmt::format("step {}: the gradient was not finite {} times in a row; lower "
                      "learning_rate, check the data, or raise max_consecutive_skips "
                      "({})",
                      record.step, skips, config_.max_consecutive_skips));
    }
  }

  /// Everything computed so far is in the weights and in the log.
  void settle() {
    report();
    session_.flush();
  }

  metrics::EvalRecord evaluate() {
    const int64_t step = running_.step >= 0 ? running_.step + 1 : steps_done();
    settle();
    const auto start = std::chrono::steady_clock::now();
    const auto extents = data_.evaluation_extents();
    const EvalSums sums = session_.evaluate(extents);
    const auto now = std::chrono::steady_clock::now();
    metrics::EvalRecord record;
    record.step = step;
    record.epoch = step > 0 ? data_.plan().epoch_after(step - 1) : 0;
    record.loss = sums.tokens > 0 ? sums.loss / sums.tokens : std::nan("");
    record.seconds = std::chrono::duration<double>(now - start).count();
    record.samples = data_.evaluation_samples();
    record.batches = static_cast<int64_t>(extents.size());
    reporter_->evaluation(record);
    evaluated_step_ = step;
    last_end_ = now;
    return record;
  }

  /// Whether this is the best model so far; where one shall be loaded, of those that are saved.
  bool judge(const metrics::EvalRecord& record) {
    const bool saved = config_.save_strategy == SaveStrategy::best || pace_.saves(record.step);
    if (config_.load_best_model_at_end && !saved) return false;
    if (std::isnan(record.loss) || (best_ && record.loss >= best_->metric)) return false;
    best_ = {record.step, record.loss, saved ? checkpoint_path(record.step) : ""};
    reporter_->set_best(*best_);
    return true;
  }

  std::string checkpoint_path(int64_t step) const {
    return std::filesystem::path(config_.output_dir) / checkpoint::folder_name(step);
  }

  /// Of the best checkpoint, where it is among those of output_dir.
  std::optional<int64_t> best_step() const {
    if (!best_ || best_->checkpoint != checkpoint_path(best_->step)) return std::nullopt;
    return best_->step;
  }

  int64_t steps_done() const { return static_cast<int64_t>(value(control_, Control::global_step)); }

  void save() {
    settle();
    reporter_->sync();
    SavePlace place{config_.output_dir, config_.model_name_or_path, steps_done(),
                    config_.save_total_limit};
    place.run = run_;
    place.best_step = best_step();
    place.known_runs = &known_runs_;
    place.only_model = config_.save_only_model;
    place.trainer_state = reporter_->trainer_state();
    Json state = {{"run", run_description_},
                  {"algorithms", algorithms_},
                  {"evaluated_step", evaluated_step_}};
    if (best_) {
      state["best"] = {
          {"step", best_->step}, {"metric", best_->metric}, {"checkpoint", best_->checkpoint}};
    }
    const auto result = save_checkpoint(session_, ranks_, place, control_, state);
    say(fmt::format("Saved {} ({})", result.folder.string(), human_bytes(result.total_bytes)));
    if (!result.set_aside.empty()) {
      say(fmt::format("note: the checkpoint of another run that was there is now {}",
                      result.set_aside));
    }
    if (!result.warning.empty()) say("warning: " + result.warning);
    last_end_ = std::chrono::steady_clock::now();
  }

  void finish() {
    settle();
    if (config_.load_best_model_at_end) load_best();
    if (config_.do_eval && evaluated_step_ != steps_done()) evaluate();
    see_memory();
    export_model(session_, ranks_, config_.model_name_or_path, config_.output_dir);
    if (config_.save_strategy != SaveStrategy::no) tidy();
    reporter_->finish();
    say(fmt::format("Model saved in {}", config_.output_dir));
  }

  /// From here on the session holds the model of the best checkpoint, and no optimizer state.
  void load_best() {
    if (!best_) return say("note: no evaluation had a loss, the last model is kept");
    const std::string& folder = best_->checkpoint;
    try {
      if (checkpoint::open_named(folder, "load_best_model_at_end", ranks_).manifest.run != run_) {
        return say(
            fmt::format("warning: {} is now of another run, the last model is kept", folder));
      }
    } catch (const ConfigError& error) {
      return say(fmt::format("warning: the last model is kept: {}", error.what()));
    }
    FolderSource source(folder, session_.plan().model);
    fill(source);
    say(fmt::format("Loaded the best model, {} (eval_loss {})", folder,
                    metrics::significant(best_->metric, 6)));
    if (best_->step != steps_done()) evaluated_step_ = -1;
  }

  /// What a killed run could not clear away after its last save.
  void tidy() {
    if (ranks_.rank() != 0) return;
    try {
      checkpoint::remove_leftovers(config_.output_dir);
      checkpoint::rotate(config_.output_dir, run_, config_.save_total_limit, best_step(),
                         &known_runs_);
    } catch (const DeviceError& error) {
      say(fmt::format("warning: {}", error.what()));
    }
  }

  const config::ParseResult& parsed_;
  const RunConfig& config_;
  const model::ModelGraph& model_;  // whole, whatever the layout
  RunData& data_;
  Pace pace_;
  device::Backend& backend_;
  checkpoint::Coordinator& ranks_;
  StartTimes times_;
  std::vector<std::pair<std::string, std::string>> backend_facts_;
  mesh::Layout layout_;
  Json run_description_;
  std::string run_;  // its id (checkpoint/folders.h)
  checkpoint::KnownRuns known_runs_;
  std::string algorithms_;
  uint64_t program_hash_ = 0;
  StepTrace trace_;
  Session session_;
  std::optional<metrics::Reporter> reporter_;
  int64_t first_step_ = 0;
  Json saved_state_;  // trainer_state.json of the checkpoint, on rank 0
  std::optional<metrics::BestModel> best_;
  int64_t evaluated_step_ = -1;  // whose model was evaluated last
  int64_t besides_ = 0;          // bytes, after the first step
  Running running_;
  ControlValues control_{};
  std::chrono::steady_clock::time_point last_end_;  // of a step, or of what came after it
};

}  // namespace

model::ModelGraph resolve_model(config::ParseResult& parsed, int64_t world_size,
                                int64_t host_ranks) {
  std::string& name = parsed.config.model_name_or_path;
  const std::string folder = model::find_model_folder("model_name_or_path", name);
  if (folder != name) parsed.notices.push_back(fmt::format("{} is {}", name, folder));
  name = folder;
  const model::ModelConfig config = model::read_model_config(folder);
  config::resolve(parsed, {config.hidden_size, config.max_position_embeddings}, world_size,
                  host_ranks);
  return model::build_model(config);
}

void run_training(const config::ParseResult& parsed, const model::ModelGraph& model, RunData& data,
                  device::Backend& backend, checkpoint::Coordinator& ranks, StartTimes times) {
  Run(parsed, model, data, backend, ranks, std::move(times)).run();
}

}  // namespace trireme::train
