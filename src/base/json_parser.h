// The tokenizer and grammar behind json.h; nothing outside base includes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme::detail {

class JsonParser {
 public:
  JsonParser(std::string_view text, int max_depth, JsonEvents& events)
      : text_(text), max_depth_(max_depth), events_(events) {}

  /// Throws DataError without position; offset() tells where.
  void parse_document();
  size_t offset() const { return at_; }

 private:
  struct Key {
    uint64_t hash;
    size_t offset;
  };

  void parse_value();
  void parse_object();
  void parse_array();
  void parse_number();
  void parse_literal();
  std::string_view parse_string();
  void parse_escape();
  uint32_t parse_hex4();
  void refuse_duplicates(size_t first_key);

  void skip_space();
  void enter();
  bool take(char c);
  void expect(char c, std::string_view after);
  bool take_word(std::string_view word);
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_key() const;

  std::string_view text_;
  int max_depth_;
  JsonEvents& events_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string decoded_;    // the last string that had escapes
  std::vector<Key> keys_;  // of all open objects
};

}  // namespace trireme::detail
