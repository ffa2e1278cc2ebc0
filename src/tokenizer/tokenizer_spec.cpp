#include "tokenizer/tokenizer_spec.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_value.h"

namespace trireme::tokenizer {
namespace {

// Policy caps: several times what real tokenizers have.
constexpr int64_t kMaxFileBytes = 256 << 20;
constexpr int64_t kMaxId = (1 << 24) - 1;
constexpr size_t kMaxAddedBytes = 1024;
constexpr size_t kMaxPatternBytes = 8192;
constexpr size_t kMaxSteps = 16;
constexpr size_t kMaxSpecialIds = 64;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const JsonValue& where, std::string_view what,
                              std::string_view supported) {
  throw ConfigError(fmt::format("{}: {}: {} is not supported; supported: {}", where.file().path(),
                                where.place(), what, supported));
}

void read_normalizer(const JsonValue& normalizer, TokenizerSpec* spec) {
  const std::string_view type = normalizer.string_at("type");
  if (type == "NFC") {
    spec->nfc = true;
  } else if (type == "Sequence") {
    const JsonValue list = normalizer.at("normalizers");
    size_t index = 0;
    for (const auto element : list.array()) read_normalizer(list.item(element, index++), spec);
  } else {
    unsupported(normalizer, fmt::format("the normalizer {}", type), "NFC, Sequence, none");
  }
}

void read_split(const JsonValue& split, TokenizerSpec* spec) {
  SplitStep step;
  const JsonValue pattern = split.at("pattern");
  const bool is_regex = pattern.find("Regex").has_value();
  const std::string_view text = pattern.string_at(is_regex ? "Regex" : "String");
  if (text.empty() || text.size() > kMaxPatternBytes) pattern.fail("is empty or too long");
  step.pattern = is_regex ? parse_pattern(text) : literal_pattern(text);
  const std::string_view behavior = split.string_at("behavior");
  if (behavior == "Removed") {
    const bool invert = split.flag("invert", false);
    step.keep_matches = invert;
    step.keep_gaps = !invert;
  } else if (behavior != "Isolated") {
    unsupported(split, fmt::format("the behavior {}", behavior), "Isolated, Removed");
  }
  spec->splits.push_back(std::move(step));
}

void read_byte_level(const JsonValue& step, TokenizerSpec* spec, bool* byte_level) {
  if (step.flag("add_prefix_space", true)) {
    if (!spec->splits.empty()) {
      unsupported(step, "add_prefix_space behind another split", "ByteLevel first");
    }
    spec->add_prefix_space = true;
  }
  if (step.flag("use_regex", true)) spec->splits.push_back({parse_pattern(kGpt2Pattern)});
  *byte_level = true;
}

void read_pre_tokenizer(const JsonValue& step, TokenizerSpec* spec, bool* byte_level) {
  const std::string_view type = step.string_at("type");
  if (type == "Sequence") {
    const JsonValue list = step.at("pretokenizers");
    size_t index = 0;
    for (const auto element : list.array()) {
      read_pre_tokenizer(list.item(element, index++), spec, byte_level);
    }
    return;
  }
  // Behind ByteLevel the text is in its alphabet, where the classes of a pattern mean nothing.
  if (*byte_level) unsupported(step, fmt::format("{} behind ByteLevel", type), "ByteLevel last");
  if (type == "Split") {
    read_split(step, spec);
  } else if (type == "Digits") {
    const bool individual = step.flag("individual_digits", false);
    spec->splits.push_back({parse_pattern(individual ? "\\p{N}" : "\\p{N}+")});
  } else if (type == "ByteLevel") {
    read_byte_level(step, spec, byte_level);
  } else {
    unsupported(step, fmt::format("the pre-tokenizer {}", type),
                "Split, Digits, ByteLevel, Sequence");
  }
  if (spec->splits.size() > kMaxSteps) step.fail("has too many steps");
}

int64_t checked_id(const JsonValue& where, int64_t id) {
  if (id < 0 || id > kMaxId) where.fail(fmt::format("has id {}, not in 0..{}", id, kMaxId));
  return id;
}

void read_added_tokens(const JsonValue& list, TokenizerSpec* spec) {
  std::unordered_map<std::string_view, int32_t> seen;
  size_t index = 0;
  for (const auto element : list.array()) {
    const JsonValue entry = list.item(element, index++);
    AddedToken token;
    token.id = static_cast<int32_t>(checked_id(entry, entry.at("id").integer()));
    const std::string_view content = entry.string_at("content");
    if (content.empty()) continue;
    if (content.size() > kMaxAddedBytes) entry.fail("is too long");
    token.content = content;
    if (entry.flag("single_word", false)) {
      unsupported(entry, "single_word", "added tokens that may stand anywhere");
    }
    token.lstrip = entry.flag("lstrip", false);
    token.rstrip = entry.flag("rstrip", false);
    token.special = entry.flag("special", false);
    token.normalized = entry.flag("normalized", !token.special);
    const auto [known, is_new] = seen.try_emplace(content, token.id);
    if (!is_new) {
      if (known->second != token.id) entry.fail("has a second id for one content");
      continue;
    }
    spec->added_tokens.push_back(std::move(token));
  }
}

void read_vocabulary(const JsonValue& vocab, TokenizerSpec* spec) {
  int64_t largest = -1;
  for (const auto [text, value] : vocab.object()) {
    int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS) vocab.fail(fmt::format("['{}'] is not an id", text));
    largest = std::max(largest, checked_id(vocab, id));
  }
  for (const AddedToken& token : spec->added_tokens) {
    largest = std::max<int64_t>(largest, token.id);
  }
  spec->tokens.resize(static_cast<size_t>(largest + 1));
  spec->token_ids.reserve(spec->tokens.size());
  for (const auto [text, value] : vocab.object()) {
    if (text.empty()) continue;
    const auto id = static_cast<int32_t>(int64_t(value));
    std::string& token = spec->tokens[static_cast<size_t>(id)];
    if (!token.empty()) vocab.fail(fmt::format("has id {} twice", id));
    token = text;
    if (!spec->token_ids.try_emplace(token, id).second) {
      vocab.fail(fmt::format("has '{}' twice", text));
    }
  }
  for (const AddedToken& token : spec->added_tokens) {
    std::string& text = spec->tokens[static_cast<size_t>(token.id)];
    const auto known = spec->token_ids.find(token.content);
    if (known == spec->token_ids.end() && text.empty()) text = token.content;
    if (text != token.content) {
      vocab.fail(
          fmt::format("contradicts the added token '{}' with id {}", token.content, token.id));
    }
  }
}

void read_byte_ids(const JsonValue& vocab, TokenizerSpec* spec) {
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte < 0xc0 || (byte >= 0xc2 && byte <= 0xf4);
    const char raw = static_cast<char>(byte);
    const auto known = spec->token_ids.find(alphabet.write({&raw, 1}));
    if (known == spec->token_ids.end() && in_utf8) {
      vocab.fail(
          fmt::format("has no token for byte 0x{:02x}: it is not a byte-level vocabulary", byte));
    }
    spec->byte_ids[static_cast<size_t>(byte)] = known == spec->token_ids.end() ? -1 : known->second;
  }
}

// "a b" or ["a", "b"].
bool read_pair(const simdjson::dom::element& element, std::string_view* left,
               std::string_view* right) {
  std::string_view text;
  if (element.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return false;
    }
    *left = text.substr(0, space);
    *right = text.substr(space + 1);
    return true;
  }
  simdjson::dom::array pair;
  return element.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
         pair.at(0).get(*left) == simdjson::SUCCESS && pair.at(1).get(*right) == simdjson::SUCCESS;
}

void read_merges(const JsonValue& merges, TokenizerSpec* spec) {
  std::string joined;
  size_t index = 0;
  for (const auto element : merges.array()) {
    std::string_view left;
    std::string_view right;
    if (!read_pair(element, &left, &right)) {
      merges.fail(fmt::format("[{}] is neither \"a b\" nor [\"a\", \"b\"]", index));
    }
    joined.assign(left).append(right);
    int32_t ids[3];
    const std::string_view texts[3] = {left, right, joined};
    for (int i = 0; i < 3; ++i) {
      const auto known = spec->token_ids.find(texts[i]);
      if (known == spec->token_ids.end()) {
        merges.fail(
            fmt::format("[{}] speaks of '{}', which is not in the vocabulary", index, texts[i]));
      }
      ids[i] = known->second;
    }
    spec->merges.push_back({ids[0], ids[1], ids[2]});
    ++index;
  }
}

void read_model(const JsonValue& model, TokenizerSpec* spec) {
  const std::string_view type = model.string_at("type");
  if (type != "BPE") unsupported(model, fmt::format("the model {}", type), "BPE");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = model.find(key);
    if (value && value->string() != "") unsupported(model, key, "none");
  }
  if (model.flag("byte_fallback", false)) {
    unsupported(model, "byte_fallback", "byte-level vocabularies");
  }
  if (model.find("dropout")) unsupported(model, "dropout", "none");
  spec->ignore_merges = model.flag("ignore_merges", false);
  const JsonValue vocab = model.at("vocab");
  read_vocabulary(vocab, spec);
  read_byte_ids(vocab, spec);
  read_merges(model.at("merges"), spec);
}

std::vector<int32_t> read_special_ids(const JsonValue& processor, std::string_view name,
                                      size_t num_tokens) {
  const JsonValue ids = processor.at("special_tokens").at(name).at("ids");
  std::vector<int32_t> result;
  size_t index = 0;
  for (const auto element : ids.array()) {
    const JsonValue id = ids.item(element, index++);
    if (id.integer() < 0 || id.integer() >= static_cast<int64_t>(num_tokens)) {
      id.fail("is no token");
    }
    result.push_back(static_cast<int32_t>(id.integer()));
  }
  return result;
}

void read_template(const JsonValue& processor, TokenizerSpec* spec) {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  bool seen_text = false;
  const JsonValue single = processor.at("single");
  size_t index = 0;
  for (const auto element : single.array()) {
    const JsonValue piece = single.item(element, index++);
    if (piece.find("Sequence")) {
      if (seen_text) unsupported(single, "the text twice", "a template with one Sequence");
      seen_text = true;
      continue;
    }
    const std::string_view name = piece.at("SpecialToken").string_at("id");
    const auto ids = read_special_ids(processor, name, spec->tokens.size());
    auto& side = seen_text ? suffix : prefix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen_text) single.fail("has no Sequence");
  spec->prefix.insert(spec->prefix.begin(), prefix.begin(), prefix.end());
  spec->suffix.insert(spec->suffix.end(), suffix.begin(), suffix.end());
  if (spec->prefix.size() + spec->suffix.size() > kMaxSpecialIds) single.fail("is too long");
}

void read_post_processor(const JsonValue& processor, TokenizerSpec* spec) {
  const std::string_view type = processor.string_at("type");
  if (type == "Sequence") {
    const JsonValue list = processor.at("processors");
    size_t index = 0;
    for (const auto element : list.array()) read_post_processor(list.item(element, index++), spec);
  } else if (type == "TemplateProcessing") {
    read_template(processor, spec);
  } else if (type != "ByteLevel") {  // which moves offsets only
    unsupported(processor, fmt::format("the post-processor {}", type),
                "TemplateProcessing, ByteLevel, Sequence, none");
  }
}

// A token that tokenizer_config.json names: a string, or an object with 'content'.
std::optional<int32_t> read_named_token(const JsonValue& config, std::string_view key,
                                        const TokenizerSpec& spec) {
  const auto value = config.find(key);
  if (!value) return std::nullopt;
  const auto text = value->string();
  const std::string_view content = text ? *text : value->string_at("content");
  for (const AddedToken& token : spec.added_tokens) {
    if (token.content == content) return token.id;
  }
  const auto known = spec.token_ids.find(content);
  if (known == spec.token_ids.end()) value->fail(fmt::format("'{}' is no token", content));
  return known->second;
}

void read_config(const std::filesystem::path& path, TokenizerSpec* spec) {
  const JsonFile file(path, kMaxFileBytes);
  const JsonValue config(file);
  spec->bos_id = read_named_token(config, "bos_token", *spec);
  spec->eos_id = read_named_token(config, "eos_token", *spec);
  const auto type = config.find("tokenizer_class");
  const auto name = type ? type->string() : std::nullopt;
  if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return;
  const auto side = [&](std::string_view key, std::string_view token, bool absent,
                        const std::optional<int32_t>& id) {
    if (!config.flag(key, absent)) return std::vector<int32_t>{};
    if (!id) config.fail(fmt::format("asks for '{}' but names no '{}'", key, token));
    return std::vector<int32_t>{*id};
  };
  spec->prefix = side("add_bos_token", "bos_token", spec->bos_id.has_value(), spec->bos_id);
  spec->suffix = side("add_eos_token", "eos_token", false, spec->eos_id);
}

}  // namespace

TokenizerSpec read_tokenizer_spec(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw ConfigError(
        fmt::format("{}: there is no such file; text needs a folder with a Hugging "
                    "Face tokenizer.json (or train on rows of input_ids)",
                    path.string()));
  }
  const JsonFile file(path, kMaxFileBytes);
  const JsonValue root(file);
  TokenizerSpec spec;
  if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer, &spec);
  bool byte_level = false;
  if (const auto step = root.find("pre_tokenizer")) read_pre_tokenizer(*step, &spec, &byte_level);
  if (!byte_level) unsupported(root, "a pre-tokenizer without ByteLevel", "byte-level BPE");
  if (const auto list = root.find("added_tokens")) read_added_tokens(*list, &spec);
  read_model(root.at("model"), &spec);
  if (const auto processor = root.find("post_processor")) read_post_processor(*processor, &spec);
  const auto config = folder / "tokenizer_config.json";
  if (std::filesystem::exists(config)) read_config(config, &spec);
  return spec;
}

}  // namespace trireme::tokenizer
