#include "tokenizer/byte_alphabet.h"

#include "tokenizer/utf8.h"

namespace trireme::tokenizer {

// Printable characters of Latin-1 stand for themselves, the other bytes for U+0100 upwards.
ByteAlphabet::ByteAlphabet() {
  byte_.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    character_[byte] = printable ? byte : next++;
    byte_[character_[byte]] = static_cast<int16_t>(byte);
  }
}

std::string ByteAlphabet::write(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) append_code_point(character_[static_cast<uint8_t>(byte)], &text);
  return text;
}

std::optional<std::string> ByteAlphabet::read(std::string_view text) const {
  std::string bytes;
  for (const char *p = text.data(), *end = p + text.size(); p != end;) {
    const uint32_t c = next_code_point(&p);
    if (c >= byte_.size() || byte_[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_[c]));
  }
  return bytes;
}

}  // namespace trireme::tokenizer
