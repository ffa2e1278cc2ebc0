#include "tokenizer/tokenizer.h"

#include <simdjson.h>

#include "base/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/nfc.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/word_cache.h"

namespace trireme::tokenizer {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::vector<AddedToken> tokens_for(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> result;
  NfcNormalizer nfc;
  for (AddedToken token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && spec.nfc) token.content = std::string(nfc.normalize(token.content));
    result.push_back(std::move(token));
  }
  return result;
}

// Bytes with every maximal part that is no UTF-8 replaced by U+FFFD.
std::string lossy_utf8(std::string_view bytes) {
  std::string result;
  while (!bytes.empty()) {
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    size_t good = length == 0 ? 0 : 1;
    while (good > 0 && good < length && good < bytes.size()) {
      const auto byte = static_cast<unsigned char>(bytes[good]);
      const bool second = good == 1;
      const unsigned low = second && lead == 0xe0 ? 0xa0 : second && lead == 0xf0 ? 0x90 : 0x80;
      const unsigned high = second && lead == 0xed ? 0x9f : second && lead == 0xf4 ? 0x8f : 0xbf;
      if (byte < low || byte > high) break;
      ++good;
    }
    if (good > 0 && good == length) {
      result += bytes.substr(0, good);
    } else {
      result += "\xef\xbf\xbd";
      good = std::max<size_t>(good, 1);
    }
    bytes.remove_prefix(good);
  }
  return result;
}

}  // namespace

struct TokenizerData {
  explicit TokenizerData(TokenizerSpec given)
      : spec(std::move(given)),
        raw_tokens(tokens_for(spec, false)),
        normalized_tokens(tokens_for(spec, true)),
        merges(spec.byte_ids, spec.merges),
        is_special(spec.tokens.size()) {
    for (const SplitStep& step : spec.splits) {
      patterns.push_back(std::make_unique<SplitPattern>(step.pattern));
    }
    for (const AddedToken& token : spec.added_tokens) {
      is_special[static_cast<size_t>(token.id)] = token.special;
    }
  }

  TokenizerSpec spec;
  AddedTokenFinder raw_tokens;
  AddedTokenFinder normalized_tokens;
  BpeMerges merges;
  std::vector<std::unique_ptr<SplitPattern>> patterns;  // one a split of spec
  ByteAlphabet alphabet;
  std::vector<bool> is_special;  // by id
};

struct Encoder::State {
  explicit State(std::shared_ptr<const TokenizerData> given)
      : data(std::move(given)), merger(data->merges) {
    for (const auto& pattern : data->patterns) matchers.emplace_back(*pattern);
  }

  void encode_raw(std::string_view text);
  void encode_normalized(std::string_view text);
  void split(size_t step, std::string_view piece);
  void encode_word(std::string_view word);

  std::shared_ptr<const TokenizerData> data;
  NfcNormalizer nfc;
  std::string prefixed;  // a stretch of text behind the space that add_prefix_space asks for
  std::vector<Matcher> matchers;
  BpeMerger merger;
  WordCache cache;
  std::vector<int32_t>* ids = nullptr;
};

// Calls text(piece) and token(id) in turn. A token that takes white space on its right along leaves
// it to be found again; the original goes back in the text then, and so does this.
template <typename OnText, typename OnToken>
void cut_added_tokens(const AddedTokenFinder& finder, std::string_view text, OnText on_text,
                      OnToken on_token) {
  AddedTokenFinder::Match match;
  size_t at = 0;
  size_t from = 0;
  while (finder.find(text, from, at, &match)) {
    if (at < match.begin) on_text(text.substr(at, match.begin - at));
    on_token(match.id);
    at = match.end;
    from = match.next;
  }
  if (at < text.size()) on_text(text.substr(at));
}

void Encoder::State::encode_raw(std::string_view text) {
  cut_added_tokens(
      data->raw_tokens, text,
      [&](std::string_view piece) {
        encode_normalized(data->spec.nfc ? nfc.normalize(piece) : piece);
      },
      [&](int32_t id) { ids->push_back(id); });
}

void Encoder::State::encode_normalized(std::string_view text) {
  cut_added_tokens(
      data->normalized_tokens, text,
      [&](std::string_view piece) {
        if (data->spec.add_prefix_space && piece[0] != ' ') {
          prefixed.assign(" ").append(piece);
          piece = prefixed;
        }
        split(0, piece);
      },
      [&](int32_t id) { ids->push_back(id); });
}

void Encoder::State::split(size_t step, std::string_view piece) {
  if (piece.empty()) return;
  if (step == matchers.size()) return encode_word(piece);
  const SplitStep& rule = data->spec.splits[step];
  Matcher& matcher = matchers[step];
  matcher.start(piece);
  std::string_view gap;
  std::string_view match;
  bool more = true;
  while (more) {
    more = matcher.next(&gap, &match);
    if (rule.keep_gaps) split(step + 1, gap);
    if (rule.keep_matches) split(step + 1, match);
  }
}

void Encoder::State::encode_word(std::string_view word) {
  const bool short_word = word.size() <= WordCache::kLongestWord;
  if (short_word) {
    const auto known = cache.find(word);
    if (!known.empty()) {
      ids->insert(ids->end(), known.begin(), known.end());
      return;
    }
  }
  const size_t before = ids->size();
  const auto& token_ids = data->spec.token_ids;
  const auto whole =
      data->spec.ignore_merges ? token_ids.find(data->alphabet.write(word)) : token_ids.end();
  if (whole != token_ids.end()) {
    ids->push_back(whole->second);
  } else {
    merger.merge(word, ids);
  }
  if (short_word) cache.insert(word, std::span(*ids).subspan(before));
}

Encoder::Encoder(const Tokenizer& tokenizer) : state_(std::make_unique<State>(tokenizer.data_)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>* ids) {
  if (text.size() > kMaxTextBytes) {
    throw DataError(fmt::format("a text of {} bytes is longer than the {} that are allowed",
                                text.size(), kMaxTextBytes));
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    throw DataError("the text is not valid UTF-8");
  }
  const TokenizerSpec& spec = state_->data->spec;
  if (add_special_tokens) ids->insert(ids->end(), spec.prefix.begin(), spec.prefix.end());
  state_->ids = ids;
  state_->encode_raw(text);
  if (add_special_tokens) ids->insert(ids->end(), spec.suffix.begin(), spec.suffix.end());
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  return Tokenizer(std::make_shared<const TokenizerData>(read_tokenizer_spec(folder)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  Encoder(*this).encode(text, add_special_tokens, &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || data_->spec.tokens[static_cast<size_t>(id)].empty()) {
      throw DataError(fmt::format("id {} is no token", id));
    }
    if (skip_special_tokens && data_->is_special[static_cast<size_t>(id)]) continue;
    const std::string& text = data_->spec.tokens[static_cast<size_t>(id)];
    bytes += data_->alphabet.read(text).value_or(text);
  }
  return lossy_utf8(bytes);
}

std::optional<int32_t> Tokenizer::bos_id() const { return data_->spec.bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return data_->spec.eos_id; }
int64_t Tokenizer::vocab_size() const { return std::ssize(data_->spec.tokens); }

}  // namespace trireme::tokenizer
