// Text to token ids and back: byte-level BPE with the ids of Hugging Face `tokenizers`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

struct TokenizerData;

/// Immutable and cheap to copy; any thread may use it.
class Tokenizer {
 public:
  /// Reads tokenizer.json and tokenizer_config.json of a Hugging Face folder; which components are
  /// understood and what is thrown for others: tokenizer_spec.h.
  static Tokenizer load(const std::filesystem::path& folder);

  /// `add_special_tokens`: with the BOS and EOS that the folder asks for. DataError for text that
  /// is not UTF-8. Builds an Encoder each time: for many texts keep one.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;

  /// Bytes that are not UTF-8 become U+FFFD. DataError for an id that is no token.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

  /// Of tokenizer_config.json; nullopt where it names none.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  /// One more than the largest id.
  int64_t vocab_size() const;

 private:
  friend class Encoder;
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}
  std::shared_ptr<const TokenizerData> data_;
};

/// The working state of one thread: scratch buffers and the tokens of frequent words (a few MiB).
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  /// Appends the tokens of `text` to *ids. See Tokenizer::encode.
  void encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>* ids);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::tokenizer
