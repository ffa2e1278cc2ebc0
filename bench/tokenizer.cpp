// MB/s of one thread that turns text into token ids, words seen before and words all new, and the
// time to load. The text and the vocabulary are made here; with TRIREME_TOKENIZER=FOLDER the
// tokenizer of that folder is measured on the same texts.
#include "tokenizer/tokenizer.h"

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace trireme::tokenizer {
namespace {

constexpr int64_t kTextBytes = 4 << 20;

std::string random_word(std::mt19937* random) {
  static constexpr const char* kSyllables[] = {
      "th", "er", "on", "an", "re", "he", "in", "ed", "nd", "ha", "at", "en", "es", "of",
      "or", "nt", "ea", "ti", "to", "it", "st", "io", "le", "is", "ou", "ar", "as"};
  std::string word;
  for (uint32_t i = 0; i < 1 + (*random)() % 5; ++i) {
    word += kSyllables[(*random)() % std::size(kSyllables)];
  }
  return word;
}

// Words by Zipf's law, capitals and full stops, paragraphs.
std::string english_like(const std::vector<std::string>& words) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, std::log(static_cast<double>(words.size())));
  std::string text;
  bool capital = true;
  while (std::ssize(text) < kTextBytes) {
    std::string word = words[static_cast<size_t>(std::exp(uniform(random))) - 1];
    if (capital) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    capital = random() % 12 == 0;
    text += word;
    text += capital ? (random() % 8 == 0 ? ".\n\n" : ". ") : random() % 10 == 0 ? ", " : " ";
  }
  return text;
}

// No word twice in a thousand: the cache does not help.
std::string all_new_words() {
  std::mt19937 random(2);
  std::string text;
  while (std::ssize(text) < kTextBytes) {
    for (uint32_t i = 0; i < 4 + random() % 8; ++i) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

// Clauses without spaces: long pieces, all new.
std::string han_like() {
  std::mt19937 random(3);
  std::string text;
  while (std::ssize(text) < kTextBytes) {
    for (uint32_t i = 0; i < 4 + random() % 16; ++i) {
      const double rank = std::exp(std::uniform_real_distribution<double>(0, 8)(random));
      append_code_point(0x4e00 + static_cast<uint32_t>(rank), &text);
    }
    append_code_point(0xff0c, &text);
  }
  return text;
}

// A vocabulary that grows each word, and each with a space before it, letter by letter.
Json tokenizer_of(const std::vector<std::string>& words) {
  const ByteAlphabet alphabet;
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocab.push_back({alphabet.write({&raw, 1}), byte});
  }
  Json merges = Json::array();
  std::set<std::string> known;
  for (const std::string& word : words) {
    for (const std::string& whole : {word, " " + word}) {
      for (size_t size = 2; size <= whole.size(); ++size) {
        const std::string token = alphabet.write(whole.substr(0, size));
        if (!known.insert(token).second) continue;
        merges.push_back(
            {alphabet.write(whole.substr(0, size - 1)), alphabet.write(whole.substr(size - 1, 1))});
        vocab.push_back({token, 256 + known.size()});
      }
    }
  }
  const char* pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  Json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    encoder.encode(text, false, &ids);
  }
  state.counters["MB/s"] = benchmark::Counter(static_cast<double>(text.size()) * 1e-6,
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

}  // namespace

void register_all(const std::filesystem::path& made_folder) {
  std::mt19937 random(4);
  std::vector<std::string> words;
  for (int i = 0; i < 30000; ++i) words.push_back(random_word(&random));
  write_new_file(made_folder / "tokenizer.json", dump_json(tokenizer_of(words)));
  const char* given = std::getenv("TRIREME_TOKENIZER");
  const std::filesystem::path folder = given != nullptr ? given : made_folder;

  const Tokenizer tokenizer = Tokenizer::load(folder);
  const auto add = [&](const char* name, std::string text) {
    benchmark::RegisterBenchmark(
        name, [tokenizer, text = std::move(text)](auto& state) { encode(state, tokenizer, text); });
  };
  add("encode/english_like", english_like(words));
  add("encode/all_new_words", all_new_words());
  add("encode/han_like", han_like());
  benchmark::RegisterBenchmark("load", [folder](auto& state) {
    for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(folder));
  })->Unit(benchmark::kMillisecond);
}

}  // namespace trireme::tokenizer

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const auto folder = std::filesystem::temp_directory_path() /
                      ("trireme-bench-tokenizer-" + std::to_string(::getpid()));
  trireme::make_folders(folder);
  trireme::tokenizer::register_all(folder);
  benchmark::RunSpecifiedBenchmarks();
  trireme::remove_tree(folder);
  return 0;
}
