// What tokenizer.json and tokenizer_config.json say, as plain data.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pattern_parser.h"

namespace trireme::tokenizer {

/// One cut of the pre-tokenizer: text becomes the matches of a pattern and the gaps between them.
struct SplitStep {
  ParsedPattern pattern;
  bool keep_matches = true;
  bool keep_gaps = true;
};

struct TokenizerSpec {
  bool nfc = false;
  bool add_prefix_space = false;    // a space goes before each stretch of text that has none
  std::vector<SplitStep> splits;    // applied in order, each to the pieces of the one before
  bool ignore_merges = false;       // a piece that is a token is that token
  std::vector<std::string> tokens;  // by id, as written; empty: no token
  std::unordered_map<std::string_view, int32_t> token_ids;  // views into `tokens`
  std::array<int32_t, 256> byte_ids{};                      // -1 for bytes that UTF-8 never has
  std::vector<BpeMerge> merges;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix;  // special tokens before and behind a text
  std::vector<int32_t> suffix;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

/// Reads `folder`/tokenizer.json and, where there is one, tokenizer_config.json.
///
/// Understands byte-level BPE: normalizer none or NFC; pre-tokenizer Split (Isolated, Removed),
/// Digits, ByteLevel and sequences of them; added tokens; post-processor ByteLevel and
/// TemplateProcessing. ConfigError names any other component; DataError a file that is broken,
/// contradicts itself or is larger than a tokenizer can be.
///
/// tokenizer_config.json gives the names of the BOS and EOS tokens. For the tokenizer classes
/// LlamaTokenizer and LlamaTokenizerFast its add_bos_token (default: whether there is a BOS) and
/// add_eos_token (false) replace the post-processor, as in Hugging Face transformers.
TokenizerSpec read_tokenizer_spec(const std::filesystem::path& folder);

}  // namespace trireme::tokenizer
