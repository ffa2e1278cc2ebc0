#include "support/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>

namespace trireme::test {

namespace fs = std::filesystem;

Words command(const std::string& verb, const Flags& flags) {
  Words words{verb};
  for (const auto& [name, value] : flags) words.insert(words.end(), {"--" + name, value});
  return words;
}

Words launched(int ranks, const Words& command, const Words& flags) {
  Words words{"launch", "--nproc_per_node", std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string Outcome::text() const {
  return fmt::format("exit code {}\nstdout:\n{}\nstderr:\n{}", code, out, err);
}

Flags with(Flags base, const Flags& flags) {
  for (const auto& [name, value] : flags) base[name] = value;
  return base;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string read_bytes(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  EXPECT_TRUE(stream.flush()) << file;
}

Json without_clock(Json json) {
  if (json.is_object()) {
    for (const char* clock :
         {"tokens_per_second", "step_seconds", "eval_runtime", "eval_samples_per_second",
          "eval_steps_per_second", "train_runtime", "train_samples_per_second",
          "train_steps_per_second", "elapsed_time", "remaining_time", "throughput"}) {
      json.erase(clock);
    }
  }
  if (json.is_structured()) {
    for (Json& part : json) part = without_clock(std::move(part));
  }
  return json;
}

std::vector<Json> read_metrics(const fs::path& file) {
  std::vector<Json> lines;
  std::istringstream stream(read_bytes(file));
  for (std::string text; std::getline(stream, text);) {
    lines.push_back(without_clock(Json::parse(text)));
  }
  return lines;
}

void write_model(const fs::path& folder, const ModelSpec& spec) {
  fs::create_directories(folder);
  const Json config = {{"model_type", "qwen2"},
                       {"architectures", {"Qwen2ForCausalLM"}},
                       {"hidden_act", "silu"},
                       {"hidden_size", 32},
                       {"intermediate_size", 48},
                       {"num_hidden_layers", spec.layers},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"max_position_embeddings", spec.max_position_embeddings},
                       {"rms_norm_eps", 1e-6},
                       {"rope_theta", 10000.0},
                       {"initializer_range", 0.1},
                       {"tie_word_embeddings", false},
                       {"vocab_size", spec.vocab_size}};
  write_text(folder / "config.json", config.dump(2));
}

void write_rows(const fs::path& file, int num_rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  for (int row = 0; row < num_rows; ++row) {
    Json ids = Json::array();
    for (auto left = 3 + random() % 18; left > 0; --left) ids.push_back(random() % 67);
    text += Json{{"input_ids", ids}}.dump() + "\n";
  }
  write_text(file, text);
}

Workplace::Workplace() {
  fs::create_directory(folder_ / "tmp");
  write_model(folder_ / "model");
  write_rows(folder_ / "data.jsonl", 50, 1);
}

std::string Workplace::program() { return TRIREME_PROGRAM; }

Flags Workplace::flags() const {
  return {{"model_name_or_path", folder_ / "model"},
          {"init_from_config", "true"},
          {"data_path", folder_ / "data.jsonl"},
          {"output_dir", folder_ / "out"},
          {"device", "cpu"},
          {"per_device_train_batch_size", "2"},
          {"learning_rate", "1e-2"},
          {"max_steps", "4"},
          {"save_strategy", "no"}};
}

Variables Workplace::complete(Variables variables) const {
  const std::string temporary = folder_ / "tmp";
  variables.insert({{"TMPDIR", temporary}, {"XDG_RUNTIME_DIR", temporary}});
  return variables;
}

std::unique_ptr<Running> Workplace::start(const Words& words, Variables variables) const {
  return std::make_unique<Running>(program(), words, complete(std::move(variables)));
}

std::unique_ptr<Running> Workplace::start_shell(const std::string& script, const Words& words,
                                                Variables variables) const {
  Words all{"-c", script, "bash", program()};
  all.insert(all.end(), words.begin(), words.end());
  return std::make_unique<Running>("/bin/bash", all, complete(std::move(variables)));
}

Outcome end_of(Running& running) {
  Outcome outcome;
  outcome.code = running.finish();
  outcome.out = running.out();
  outcome.err = running.err();
  return outcome;
}

namespace {

/// Processes with `part` in their command line, this one left out.
std::vector<int> processes_with(const std::string& part) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    int pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code != std::errc() || *end != '\0' || pid == getpid()) continue;
    std::ifstream stream(entry.path() / "cmdline", std::ios::binary);
    const std::string line(std::istreambuf_iterator<char>(stream), {});
    if (has(line, part)) found.push_back(pid);
  }
  return found;
}

}  // namespace

Outcome Workplace::run(const Words& words, const Variables& variables) const {
  return end_of(*start(words, variables));
}

Outcome Workplace::run_shell(const std::string& script, const Words& words) const {
  return end_of(*start_shell(script, words));
}

void Workplace::expect_nothing_left() const {
  const auto deadline = store::Clock::now() + kPatience;
  while (!processes_with(path()).empty() && store::Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(processes_with(path()).size(), 0U);
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "tmp")) {
    EXPECT_TRUE(entry.is_directory()) << entry.path();
  }
}

}  // namespace trireme::test
