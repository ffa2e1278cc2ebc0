#include <cstdio>
#include <filesystem>
#include <map>

#include "app/verbs.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/report.h"
#include "model/graph.h"
#include "model/hf_weights.h"
#include "model/hub_cache.h"
#include "model/model_config.h"
#include "train/run_files.h"

namespace trireme::app {

namespace {

constexpr std::string_view kUsage =
    "usage: trireme checkpoint list OUTPUT_DIR\n"
    "       trireme checkpoint verify OUTPUT_DIR | CHECKPOINT\n"
    "       trireme checkpoint export CHECKPOINT MODEL_DIR TO [f32|bf16|f16]\n\n"
    "list shows checkpoints in the order in which a resume tries them, then those renamed to\n"
    "make room for another run's; verify reads every file again and compares its hash; export\n"
    "writes the masters of a checkpoint as a Hugging Face folder, in f32 unless another type is\n"
    "given, with the config and tokenizer files of MODEL_DIR (or a hub id).\n";

int show(const checkpoint::Report& report) {
  std::fputs(report.text.c_str(), stdout);
  return report.good ? 0 : 1;
}

/// An export replaces files of the same names.
void check_export_place(const std::filesystem::path& model_dir, const std::string& to) {
  train::check_output_dir("TO", to);
  std::error_code ignored;
  if (std::filesystem::equivalent(model_dir, to, ignored)) {
    throw ConfigError("TO", printable(to),
                      "is MODEL_DIR, whose weights would be replaced; give another folder");
  }
  if (std::filesystem::exists(std::filesystem::path(to) / checkpoint::kManifestName, ignored)) {
    throw ConfigError("TO", printable(to),
                      "is a checkpoint, whose files would be replaced; give another folder");
  }
}

int export_to_folder(Arguments args) {
  const std::string precision = args.size() == 5 ? args[4] : "f32";
  const auto dtype = parse_dtype(precision);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    throw ConfigError("dtype", printable(precision), "choose f32, bf16 or f16");
  }
  const auto folder = model::find_model_folder("MODEL_DIR", args[2]);
  check_export_place(folder, args[3]);
  const auto model = model::build_model(model::read_model_config(folder));
  checkpoint::export_checkpoint(args[1], {folder, model::expected_tensors(model)}, args[3], *dtype);
  std::fputs(fmt::format("Exported {} to {}\n", args[1], args[3]).c_str(), stdout);
  return 0;
}

}  // namespace

int checkpoint_verb(Arguments args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    std::fputs(kUsage.data(), stdout);
    return args.empty() ? 2 : 0;
  }
  if (args[0] == "list" && args.size() == 2) return show(checkpoint::list_report(args[1]));
  if (args[0] == "verify" && args.size() == 2) return show(checkpoint::verify_report(args[1]));
  if (args[0] == "export" && (args.size() == 4 || args.size() == 5)) return export_to_folder(args);
  throw ConfigError(
      fmt::format("checkpoint {} does not fit; it takes list OUTPUT_DIR, verify "
                  "FOLDER, or export CHECKPOINT MODEL_DIR TO [f32|bf16|f16]",
                  printable(fmt::format("{}", fmt::join(args, " ")))));
}

}  // namespace trireme::app
