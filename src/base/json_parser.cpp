#include "base/json_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace trireme::detail {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(uint32_t code, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | (code >> 6));
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3f));
    put(0x80 | ((code >> 6) & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

}  // namespace

void JsonParser::fail(const std::string& message) const { throw DataError(message); }

void JsonParser::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++at_;
  }
}

bool JsonParser::take(char c) {
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonParser::expect(char c, std::string_view after) {
  skip_space();
  if (take(c)) return;
  if (at_ >= text_.size()) fail(fmt::format("the text ends where '{}' belongs", c));
  fail(
      fmt::format("expected '{}' after {}, found '{}'", c, after, printable(text_.substr(at_, 1))));
}

bool JsonParser::take_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

void JsonParser::enter() {
  if (++depth_ > max_depth_) fail(fmt::format("nested deeper than {} levels", max_depth_));
}

void JsonParser::parse_document() {
  parse_value();
  skip_space();
  if (at_ < text_.size()) fail("text after the end of the JSON value");
}

void JsonParser::parse_value() {
  skip_space();
  const char c = peek();
  if (c == '{') return parse_object();
  if (c == '[') return parse_array();
  if (c == '"') return events_.text(parse_string());
  if (is_digit(c) || (c == '-' && text_.substr(at_, 2) != "-I")) return parse_number();
  parse_literal();
}

void JsonParser::parse_literal() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (at_ >= text_.size()) fail("the text ends where a value belongs");
  if (take_word("true")) return events_.scalar(true);
  if (take_word("false")) return events_.scalar(false);
  if (take_word("null")) return events_.scalar(nullptr);
  if (take_word("NaN")) return events_.scalar(std::numeric_limits<double>::quiet_NaN());
  if (take_word("Infinity")) return events_.scalar(kInfinity);
  if (take_word("-Infinity")) return events_.scalar(-kInfinity);
  fail(fmt::format("expected a value, found '{}'", printable(text_.substr(at_, 16))));
}

void JsonParser::fail_key() const {
  const char c = peek();
  if (c == '/' || c == '#') fail("JSON has no comments; remove them");
  if (c == '}') fail("a comma stands before '}'");
  fail("expected a key in double quotes");
}

void JsonParser::parse_object() {
  enter();
  ++at_;
  const size_t first_key = keys_.size();
  events_.begin_object();
  skip_space();
  if (!take('}')) {
    do {
      skip_space();
      if (peek() != '"') fail_key();
      const size_t key_offset = at_;
      const std::string_view name = parse_string();
      keys_.push_back({hash64(name), key_offset});
      events_.key(name);
      expect(':', "a key");
      parse_value();
      skip_space();
    } while (take(','));
    expect('}', "a member");
  }
  refuse_duplicates(first_key);
  events_.end_object();
  --depth_;
}

void JsonParser::refuse_duplicates(size_t first_key) {
  const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(first_key);
  std::sort(begin, keys_.end(), [](const Key& a, const Key& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.offset < b.offset;
  });
  const auto twice = std::adjacent_find(
      begin, keys_.end(), [](const Key& a, const Key& b) { return a.hash == b.hash; });
  if (twice != keys_.end()) {
    at_ = (twice + 1)->offset;
    fail(fmt::format("key '{}' appears twice", printable(parse_string())));
  }
  keys_.resize(first_key);
}

void JsonParser::parse_array() {
  enter();
  ++at_;
  events_.begin_array();
  skip_space();
  if (!take(']')) {
    do {
      parse_value();
      skip_space();
    } while (take(','));
    expect(']', "an element");
  }
  events_.end_array();
  --depth_;
}

void JsonParser::parse_number() {
  const size_t begin = at_;
  const auto digits = [&] {
    const size_t first = at_;
    while (is_digit(peek())) ++at_;
    if (at_ == first) fail("a digit is missing in a number");
  };
  const bool negative = take('-');
  if (take('0')) {
    if (is_digit(peek())) fail("a number starts with a needless 0");
  } else {
    digits();
  }
  bool integer = true;
  if (take('.')) {
    integer = false;
    digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    integer = false;
    ++at_;
    if (!take('+')) take('-');
    digits();
  }
  const char* first = text_.data() + begin;
  const char* last = text_.data() + at_;
  if (integer && negative) {
    int64_t value = 0;
    if (std::from_chars(first, last, value).ec == std::errc{}) return events_.scalar(value);
  } else if (integer) {
    uint64_t value = 0;
    if (std::from_chars(first, last, value).ec == std::errc{}) return events_.scalar(value);
  }
  double value = 0.0;
  if (std::from_chars(first, last, value).ec != std::errc{}) {
    // Too large, or too small, which strtod makes zero or subnormal.
    const std::string copy(first, last);
    value = std::strtod(copy.c_str(), nullptr);
    if (std::isinf(value)) fail(fmt::format("the number {} is out of range", printable(copy, 40)));
  }
  events_.scalar(value);
}

std::string_view JsonParser::parse_string() {
  ++at_;
  const size_t begin = at_;
  const auto run_end = [&](size_t from) {  // of plain characters
    while (from < text_.size() && text_[from] != '"' && text_[from] != '\\' &&
           static_cast<unsigned char>(text_[from]) >= 0x20) {
      ++from;
    }
    return from;
  };
  const auto take_run = [&] {
    const size_t from = at_;
    at_ = run_end(at_);
    const std::string_view run = text_.substr(from, at_ - from);
    if (!is_utf8(run)) fail("a string is not UTF-8");
    if (at_ >= text_.size()) fail("the text ends inside a string");
    if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a control character in a string");
    return run;
  };
  const std::string_view plain = take_run();
  if (take('"')) return plain;
  decoded_.assign(text_.substr(begin, at_ - begin));
  while (!take('"')) {
    if (take('\\')) parse_escape();
    decoded_ += take_run();
  }
  return decoded_;
}

uint32_t JsonParser::parse_hex4() {
  uint32_t value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (code != std::errc{} || end != digits.data() + 4) fail("\\u needs four hexadecimal digits");
  at_ += 4;
  return value;
}

void JsonParser::parse_escape() {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char c = peek();
  ++at_;
  if (c == 'u') {
    uint32_t code = parse_hex4();
    if (code >= 0xd800 && code < 0xdc00) {
      if (!take_word("\\u")) fail("a lone surrogate in a string");
      const uint32_t low = parse_hex4();
      if (low < 0xdc00 || low >= 0xe000) fail("a lone surrogate in a string");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      fail("a lone surrogate in a string");
    }
    append_utf8(code, &decoded_);
    return;
  }
  const size_t which = c == '\0' ? std::string_view::npos : kLetters.find(c);
  if (which == std::string_view::npos) fail("an unknown escape in a string");
  decoded_.push_back(kMeanings[which]);
}

}  // namespace trireme::detail
