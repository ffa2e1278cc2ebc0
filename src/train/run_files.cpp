#include "train/run_files.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/fit.h"
#include "checkpoint/folders.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/hf_shared_writer.h"
#include "config/words.h"
#include "metrics/reporter.h"

namespace trireme::train {

namespace {

using ops::Control;

/// The part of the control block that outlives a step.
constexpr std::array<std::pair<std::string_view, Control>, 4> kKept = {
    {{"global_step", Control::global_step},
     {"updates", Control::updates},
     {"skipped_steps", Control::skipped_steps},
     {"consecutive_skips", Control::consecutive_skips}}};

/// The boxes that the save program hands out, in its order.
std::vector<checkpoint::Piece> saved_pieces(const plan::Plan& plan) {
  std::vector<checkpoint::Piece> pieces;
  for (const plan::Entry& entry : plan.save.schedule) {
    if (entry.kind != plan::EntryKind::port) continue;
    const plan::Port& port = plan.save.ports[static_cast<size_t>(entry.item)];
    const auto& group = plan.groups.groups[static_cast<size_t>(port.group)];
    for (plan::HeldBox& held :
         plan::held_boxes(group, port.begin, port.begin + port.buffer.count)) {
      if (!held.counted) continue;
      const model::Parameter& parameter =
          plan.model.parameters[static_cast<size_t>(held.parameter)];
      pieces.push_back({parameter.name, std::string(name_of(port.plane)), parameter.shape,
                        std::move(held.box), port.buffer.dtype});
    }
  }
  return pieces;
}

class WriterSink final : public StateSink {
 public:
  explicit WriterSink(checkpoint::CheckpointWriter& writer) : writer_(writer) {}
  void write(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box, DType,
             const std::byte* data) override {
    writer_.add(parameter.name, name_of(plane), box, data);
  }

 private:
  checkpoint::CheckpointWriter& writer_;
};

/// Tensors of the exported model, in the order in which the groups hold them.
std::vector<model::TensorSpec> exported_tensors(const plan::Plan& plan) {
  std::vector<model::TensorSpec> tensors;
  for (const plan::ParameterGroup& group : plan.groups.groups) {
    for (const plan::Placed& placed : group.placed) {
      const model::Parameter& parameter =
          plan.model.parameters[static_cast<size_t>(placed.parameter)];
      tensors.push_back({parameter.name, plan.compute, parameter.shape});
    }
  }
  return tensors;
}

std::vector<model::TensorSpec> all_tensors(const plan::Plan& plan) {
  std::vector<model::TensorSpec> tensors;
  for (const model::Parameter& parameter : plan.model.parameters) {
    tensors.push_back({parameter.name, plan.compute, parameter.shape});
  }
  return tensors;
}

/// Exported elements as f32.
class Widener {
 public:
  const float* widen(DType dtype, const std::byte* data, int64_t count) {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(data);
    wide_.resize(static_cast<size_t>(count));
    const auto* narrow = reinterpret_cast<const uint16_t*>(data);
    std::transform(narrow, narrow + count, wide_.begin(), f32_from_bf16);
    return wide_.data();
  }

 private:
  std::vector<float> wide_;
};

/// Every rank writes the boxes that it holds.
class SharedExportSink final : public WeightSink {
 public:
  explicit SharedExportSink(checkpoint::HfSharedWriter& writer) : writer_(writer) {}
  void write(const model::Parameter& parameter, const mesh::Box& box, DType dtype,
             const std::byte* data) override {
    writer_.write(parameter.name, box, widener_.widen(dtype, data, box.size()));
  }

 private:
  checkpoint::HfSharedWriter& writer_;
  Widener widener_;
};

/// Only rank 0 has a writer; the others take part in the gathers.
class ExportSink final : public WeightSink {
 public:
  explicit ExportSink(checkpoint::HfWriter* writer) : writer_(writer) {}
  void write(const model::Parameter&, const mesh::Box& box, DType dtype,
             const std::byte* data) override {
    writer_->append(widener_.widen(dtype, data, box.size()), box.size());
  }

 private:
  checkpoint::HfWriter* writer_;
  Widener widener_;
};

std::vector<checkpoint::FileRecord> export_by_rank_0(Session& session, int rank,
                                                     const std::filesystem::path& to) {
  std::unique_ptr<checkpoint::HfWriter> writer;
  if (rank == 0) {
    writer = std::make_unique<checkpoint::HfWriter>(to, exported_tensors(session.plan()));
  }
  ExportSink sink(writer.get());
  session.export_weights(sink);
  return writer ? writer->finish() : std::vector<checkpoint::FileRecord>();
}

std::vector<checkpoint::FileRecord> export_by_all(Session& session, checkpoint::Coordinator& ranks,
                                                  const std::filesystem::path& to) {
  checkpoint::HfSharedWriter writer(to, all_tensors(session.plan()), ranks);
  SharedExportSink sink(writer);
  session.export_weights(sink);
  return writer.finish();
}

/// Streams the weights to `to`. On rank 0: the files written.
std::vector<checkpoint::FileRecord> export_weights(Session& session, checkpoint::Coordinator& ranks,
                                                   const std::filesystem::path& model_folder,
                                                   const std::filesystem::path& to) {
  const mesh::Layout& layout = session.plan().mesh.layout;
  const bool whole = layout.tp * layout.pp == 1;  // on rank 0
  std::vector<checkpoint::FileRecord> files =
      whole ? export_by_rank_0(session, ranks.rank(), to) : export_by_all(session, ranks, to);
  if (ranks.rank() != 0) return {};
  auto copied = checkpoint::copy_model_files(model_folder, to, session.plan().compute);
  files.insert(files.end(), copied.begin(), copied.end());
  return files;
}

}  // namespace

void CheckpointSource::check_fits(const model::ModelGraph& model,
                                  config::Optimizer optimizer) const {
  if (only_model()) return;
  if (optimizer == config::Optimizer::adamw &&
      reader_.manifest().find_plane(name_of(plan::Plane::exp_avg)) < 0) {
    throw ConfigError("optim", config::word_of(optimizer),
                      fmt::format("{} was saved with another optimizer and holds no moments; give "
                                  "its optim, or start from its weights with --model_name_or_path",
                                  folder().string()));
  }
  const std::string problem =
      checkpoint::misfit(reader_.manifest(), model::expected_tensors(model));
  if (problem.empty()) return;
  throw ConfigError(
      "resume_from_checkpoint", folder().string(),
      fmt::format("it is of another model: {}; give the model_name_or_path of the run "
                  "that saved it, or another output_dir",
                  problem));
}

void CheckpointSource::read(const model::Parameter& parameter, plan::Plane plane,
                            const mesh::Box& box, float* out) {
  reader_.read(parameter.name, name_of(plane), parameter.shape, box, out);
}

void CheckpointSource::read_control(std::span<double> control) {
  std::fill(control.begin(), control.end(), 0.0);
  const Json& saved = reader_.state().at("control");
  for (const auto& [name, field] : kKept) {
    control[static_cast<size_t>(ops::index(field))] = saved.at(std::string(name)).get<double>();
  }
}

std::string conversion(const checkpoint::FoundCheckpoint& found, const plan::State& state) {
  std::string sentence;
  const auto add = [&](plan::Plane plane, std::string_view what, DType kept) {
    const checkpoint::Manifest& manifest = found.manifest;
    const int64_t index = manifest.find_plane(name_of(plane));
    if (index < 0 || manifest.planes[static_cast<size_t>(index)].dtype == kept) return;
    sentence += fmt::format(
        "{}its {} {}", sentence.empty() ? "" : ", ", what,
        kept == DType::f32 ? "become float32 as they are" : "are rounded to the nearest bfloat16");
  };
  add(plan::Plane::master, "masters", state.masters);
  const bool has_moments = std::any_of(state.groups.begin(), state.groups.end(),
                                       [](const auto& group) { return group.exp_avg >= 0; });
  if (has_moments) add(plan::Plane::exp_avg, "moments", state.moments);
  if (sentence.empty()) return "";
  return fmt::format("{}: {}", found.folder.filename().string(), sentence);
}

std::string find_beside(const checkpoint::FoundCheckpoint& found, int64_t step,
                        const std::filesystem::path& recorded,
                        const std::filesystem::path& output_dir) {
  namespace fs = std::filesystem;
  fs::path here = fs::absolute(found.folder).lexically_normal();
  if (!here.has_filename()) here = here.parent_path();  // "checkpoint-9/"
  for (fs::path folder : {here.parent_path(), recorded.parent_path()}) {
    std::error_code ignored;
    if (fs::equivalent(folder, output_dir, ignored)) folder = output_dir;
    try {
      const fs::path place = checkpoint::find_of_run(folder, found.manifest.run, step);
      if (!place.empty()) return place;
    } catch (const DeviceError&) {
      // It may be in the folder of somebody who lets nobody look: then it cannot be loaded either.
    }
  }
  return "";
}

void check_output_dir(std::string_view field, const std::string& output_dir) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::error_code why;
  if (fs::status(output_dir, why).type() == fs::file_type::none) {
    throw ConfigError(field, printable(output_dir),
                      fmt::format("{}; give another one", why.message()));
  }
  fs::path there = fs::absolute(output_dir);
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, ignored)) {
    throw ConfigError(field, output_dir,
                      fmt::format("{} is not a folder; give another one", there.string()));
  }
  if (::access(there.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(field, output_dir,
                      fmt::format("{}: {}; give a folder that you may write to", there.string(),
                                  std::strerror(errno)));
  }
}

std::vector<std::string> names_of_other_runs(const std::string& output_dir,
                                             const std::string& run) {
  std::vector<std::string> names;
  for (const auto& folder : checkpoint::folders_of_other_runs(output_dir, run)) {
    names.push_back(folder.path.filename());
  }
  return names;
}

std::string note_on_other_runs(const std::string& output_dir, const std::string& run) {
  const std::vector<std::string> names = names_of_other_runs(output_dir, run);
  if (names.empty()) return "";
  const std::string_view them = names.size() == 1 ? "it" : "them";
  return fmt::format(
      "note: {} holds {} of another run; this one neither goes on from {} nor removes {}",
      output_dir, join_some(names, kMaxListed), them, them);
}

void take_over(const std::string& output_dir, const std::string& run) {
  metrics::hand_over_logs(output_dir, checkpoint::current_run(output_dir), run);
  checkpoint::begin_run(output_dir, run);
}

Json describe_run(const config::RunConfig& config, int64_t num_samples, int64_t data_ranks) {
  Json run;
  run["num_samples"] = num_samples;
  run["samples_per_step"] =
      config.per_device_train_batch_size * config.gradient_accumulation_steps * data_ranks;
  run["seed"] = config.data_seed.value_or(config.seed);
  run["train_sampling_strategy"] =
      config.train_sampling_strategy == config::Sampling::random ? "random" : "sequential";
  run["packing"] =
      config.packing ? std::string(config::word_of(config.packing_strategy)) : std::string("none");
  run["max_seq_length"] = config.max_seq_length;
  run["completion_only_loss"] = config.completion_only_loss.value_or(true);
  run["max_steps"] = config.max_steps;
  run["num_train_epochs"] = config.num_train_epochs;
  run["learning_rate"] = config.learning_rate;
  run["warmup_steps"] = config.warmup_steps;
  run["weight_decay"] = config.weight_decay;
  run["optim"] = std::string(config::word_of(config.optim));
  run["lr_scheduler_type"] = std::string(config::word_of(config.lr_scheduler_type));
  run["adam_beta1"] = config.adam_beta1;
  run["adam_beta2"] = config.adam_beta2;
  run["max_grad_norm"] = config.max_grad_norm;
  run["bf16"] = config.bf16;
  run["reduce_dtype"] = std::string(config::word_of(config.reduce_dtype));
  return run;
}

std::vector<std::string> differences(const Json& saved, const Json& now) {
  std::vector<std::string> found;
  for (const auto& [name, value] : now.items()) {
    if (!saved.contains(name) || saved.at(name) == value) continue;
    found.push_back(fmt::format("{} is {}, the run that saved this checkpoint had {}", name,
                                value.dump(), saved.at(name).dump()));
  }
  return found;
}

checkpoint::SaveResult save_checkpoint(Session& session, checkpoint::Coordinator& ranks,
                                       const SavePlace& place, const ControlValues& control,
                                       const Json& state) {
  checkpoint::SaveRequest request;
  request.output_dir = place.output_dir;
  request.step = place.step;
  request.run = place.run;
  request.save_total_limit = place.save_total_limit;
  request.best_step = place.best_step;
  request.known_runs = place.known_runs;
  std::vector<checkpoint::Piece> pieces;
  if (!place.only_model) pieces = saved_pieces(session.plan());
  checkpoint::CheckpointWriter writer(request, std::move(pieces), ranks);
  WriterSink sink(writer);
  if (!place.only_model) session.save(sink);
  // Each on its own: what rank 0 alone cannot write must not keep it from the export, where the
  // others wait for it.
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const DeviceError& error) {
      writer.fail(error.what());
    }
  };
  if (ranks.rank() == 0) {
    attempt([&] {
      write_new_file(writer.folder() / kTrainerState, place.trainer_state);
      writer.include(checkpoint::record_of(std::string(kTrainerState), place.trainer_state));
    });
  }
  attempt([&] {
    for (const auto& file : export_weights(session, ranks, place.model_folder, writer.folder())) {
      writer.include(file);
    }
  });
  Json all = state;
  for (const auto& [name, field] : kKept) {
    all["control"][std::string(name)] = value(control, field);
  }
  return writer.commit(all);
}

void export_model(Session& session, checkpoint::Coordinator& ranks,
                  const std::filesystem::path& model_folder, const std::filesystem::path& to) {
  std::string problem;
  try {
    export_weights(session, ranks, model_folder, to);
  } catch (const checkpoint::AgreedError&) {
    throw;  // every rank has it
  } catch (const DeviceError& error) {
    problem = error.what();
  }
  checkpoint::agree(ranks, "export", problem);
}

}  // namespace trireme::train
