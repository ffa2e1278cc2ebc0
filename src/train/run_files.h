// Checkpoints and model folders of a run: what a session hands out, written; what is there, read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "config/run_config.h"
#include "train/session.h"

namespace trireme::train {

/// The state of a checkpoint, whatever layout saved it.
class CheckpointSource final : public StateSource {
 public:
  /// `reader` is borrowed, and checked when all was read.
  explicit CheckpointSource(checkpoint::CheckpointReader& reader) : reader_(reader) {}
  const std::filesystem::path& folder() const { return reader_.folder(); }
  int64_t step() const { return reader_.step(); }
  /// Whether it was saved with only_model.
  bool only_model() const { return reader_.manifest().only_model(); }
  const Json& state() const { return reader_.state(); }
  /// ConfigError when it is of another model (other parameters, or other shapes), or of an
  /// optimizer that kept no moments where this run needs them.
  void check_fits(const model::ModelGraph& model, config::Optimizer optimizer) const;
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) override;
  void read_control(std::span<double> control) override;

 private:
  checkpoint::CheckpointReader& reader_;
};

/// One sentence about planes that the run keeps in another type than the checkpoint; "" for none.
std::string conversion(const checkpoint::FoundCheckpoint& found, const plan::State& state);

/// Where the checkpoint of that run after update `step` is now: beside the one that was found, or
/// beside where it was `recorded`; "" when it is at neither place. What is in `output_dir` is named
/// as that is.
std::string find_beside(const checkpoint::FoundCheckpoint& found, int64_t step,
                        const std::filesystem::path& recorded,
                        const std::filesystem::path& output_dir);

/// As Hugging Face calls what metrics/trainer_state.h writes.
inline constexpr std::string_view kTrainerState = "trainer_state.json";

/// ConfigError about `field` when no file can be made in `output_dir`, which need not exist yet.
/// Changes nothing.
void check_output_dir(std::string_view field, const std::string& output_dir);

inline constexpr size_t kMaxListed = 8;  // names in one sentence

/// The checkpoints in `output_dir` that are of another run than `run`.
std::vector<std::string> names_of_other_runs(const std::string& output_dir, const std::string& run);
/// One sentence that names them; "" for none.
std::string note_on_other_runs(const std::string& output_dir, const std::string& run);

/// Of one rank: output_dir is that run's from here on; checkpoints and logs of another one are
/// kept.
void take_over(const std::string& output_dir, const std::string& run);

/// What a run is, as far as a resume must know: kept in the state of every checkpoint.
Json describe_run(const config::RunConfig& config, int64_t num_samples, int64_t data_ranks);
/// One sentence for each setting that differs from the run that saved: the schedule, the order of
/// the data or the numbers will not be those of that run.
std::vector<std::string> differences(const Json& saved, const Json& now);

struct SavePlace {
  std::filesystem::path output_dir;
  std::filesystem::path model_folder;  // whose config and tokenizer files are copied
  int64_t step = 0;
  int64_t save_total_limit = 0;
  std::string run = {};                         // its id (checkpoint/folders.h)
  std::optional<int64_t> best_step = {};        // of a checkpoint that is kept in any case
  checkpoint::KnownRuns* known_runs = nullptr;  // of earlier saves; may be null
  bool only_model = false;                      // no state to resume from
  std::string trainer_state = {};               // of rank 0: the text of trainer_state.json
};

/// Collective: writes and publishes output_dir/checkpoint-N with the Hugging Face weights beside
/// it. `state`: what a resume shall find beside the control block. The session was flushed. Throws
/// AgreedError; older checkpoints stay.
checkpoint::SaveResult save_checkpoint(Session& session, checkpoint::Coordinator& ranks,
                                       const SavePlace& place, const ControlValues& control,
                                       const Json& state);

/// Collective: the Hugging Face folder of the trained model. Rank 0 writes where it has the whole
/// model; else `to` is a folder that all ranks see, and each writes what it holds. Throws
/// AgreedError.
void export_model(Session& session, checkpoint::Coordinator& ranks,
                  const std::filesystem::path& model_folder, const std::filesystem::path& to);

}  // namespace trireme::train
