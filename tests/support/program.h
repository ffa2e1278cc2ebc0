// The program `trireme` as people run it: real processes in a folder of their own, on a tiny model.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "dist/processes.h"
#include "support/temp_folder.h"

namespace trireme::test {

using Words = std::vector<std::string>;
using Flags = std::map<std::string, std::string>;  // by name, without dashes
using Variables = std::map<std::string, std::string>;

/// {"verb", "--name", "value", ...}.
Words command(const std::string& verb, const Flags& flags);
/// {"launch", ..., "--", command...}.
Words launched(int ranks, const Words& command, const Words& flags = {});

struct Outcome {
  int code = -1;  // as a shell reports it
  std::string out, err;
  /// For messages of failed tests.
  std::string text() const;
};

/// Waits for the end of what was started.
Outcome end_of(Running& running);

/// `flags` over `base`.
Flags with(Flags base, const Flags& flags);
bool has(const std::string& text, const std::string& part);
int count(const std::string& text, const std::string& part);
std::string read_bytes(const std::filesystem::path& file);
void write_text(const std::filesystem::path& file, const std::string& text);

/// JSON of a run without what the clock wrote, at any depth.
Json without_clock(Json json);
/// The lines of a metrics.jsonl, or another log, without what the clock wrote.
std::vector<Json> read_metrics(const std::filesystem::path& file);

struct ModelSpec {
  int64_t layers = 2;
  int64_t vocab_size = 67;
  int64_t max_position_embeddings = 64;
};
/// A Qwen2 folder with a config.json alone.
void write_model(const std::filesystem::path& folder, const ModelSpec& spec = {});
/// Rows of 3 to 20 random ids below 67.
void write_rows(const std::filesystem::path& file, int num_rows, uint32_t seed);

/// A folder with `model` (no weights) and `data.jsonl` (50 rows), removed at the end. Programs that
/// run here keep their temporary files here too.
class Workplace {
 public:
  Workplace();

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  /// The binary's path.
  static std::string program();
  /// What a short run needs: this model, these data, output_dir "out", 4 steps, nothing saved.
  Flags flags() const;
  std::unique_ptr<Running> start(const Words& words, Variables variables = {}) const;
  Outcome run(const Words& words, const Variables& variables = {}) const;
  /// `script` of bash, in which "$@" is the program and `words`.
  std::unique_ptr<Running> start_shell(const std::string& script, const Words& words,
                                       Variables variables = {}) const;
  Outcome run_shell(const std::string& script, const Words& words) const;

  /// Ends of processes that were started here take a moment: waits for them, and fails the test
  /// when one still runs, or a temporary file is left.
  void expect_nothing_left() const;

 private:
  Variables complete(Variables variables) const;
  TempFolder folder_;
};

}  // namespace trireme::test
