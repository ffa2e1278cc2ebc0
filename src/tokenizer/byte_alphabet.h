// The byte-level alphabet: tokenizer.json writes every byte as one printable character.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The character of a byte.
  uint32_t character(uint8_t byte) const { return character_[byte]; }
  /// Bytes as tokenizer.json writes them.
  std::string write(std::string_view bytes) const;
  /// The inverse; nullopt where a character is not of the alphabet. `text` is valid UTF-8.
  std::optional<std::string> read(std::string_view text) const;

 private:
  std::array<uint32_t, 256> character_;
  std::array<int16_t, 0x180> byte_;  // by character; -1: none
};

}  // namespace trireme::tokenizer
