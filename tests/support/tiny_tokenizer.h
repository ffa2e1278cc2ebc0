// The smallest tokenizer.json there is: 256 bytes, a few merges, a few added tokens.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_alphabet.h"

namespace trireme::test {

inline constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Bytes are ids 0..255 in order; merges (of raw bytes) make ids from 256; "<bos>" and "<eos>"
/// come last, as special added tokens.
inline Json tiny_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  const tokenizer::ByteAlphabet alphabet;
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocab[alphabet.write({&raw, 1})] = byte;
  }
  Json pairs = Json::array();
  for (const auto& [left, right] : merges) {
    pairs.push_back({alphabet.write(left), alphabet.write(right)});
    vocab[alphabet.write(left + right)] = vocab.size();
  }
  const size_t size = vocab.size();
  const auto added = [](size_t id, const char* content) {
    return Json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {{"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", kQwenPattern}}}, {"behavior", "Isolated"}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"added_tokens", {added(size, "<bos>"), added(size + 1, "<eos>")}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}}};
}

inline Json tiny_tokenizer_config() {
  return {{"bos_token", "<bos>"}, {"eos_token", {{"content", "<eos>"}}}};
}

inline void write_tokenizer(const std::filesystem::path& folder, const Json& tokenizer,
                            const Json& config = tiny_tokenizer_config()) {
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "tokenizer_config.json");
  std::ofstream(folder / "tokenizer.json") << dump_json(tokenizer);
  if (!config.is_null()) std::ofstream(folder / "tokenizer_config.json") << dump_json(config);
}

}  // namespace trireme::test
