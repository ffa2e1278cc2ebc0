// Reading UTF-8 that is already known to be valid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// Bytes of the code point that starts with `lead`.
inline int64_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point at *at, which moves behind it.
inline uint32_t next_code_point(const char** at) {
  const auto* p = reinterpret_cast<const unsigned char*>(*at);
  const int64_t length = utf8_length(**at);
  *at += length;
  switch (length) {
    case 1:
      return p[0];
    case 2:
      return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    case 3:
      return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    default:
      return (p[0] & 0x7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
  }
}

inline void append_code_point(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const auto tail = [out](uint32_t bits) {
    out->push_back(static_cast<char>(0x80 | (bits & 0x3f)));
  };
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | c >> 12));
    tail(c >> 6);
  } else {
    out->push_back(static_cast<char>(0xf0 | c >> 18));
    tail(c >> 12);
    tail(c >> 6);
  }
  tail(c);
}

}  // namespace trireme::tokenizer
