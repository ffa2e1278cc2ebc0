// A regular expression that cuts text into pieces, exactly as Hugging Face `tokenizers` does.
//
// Code points that no part of the pattern tells apart are interchangeable. So a text is first
// rewritten with one byte a code point, its kind; the pattern is rewritten over kinds; and PCRE2
// (with JIT where the system allows it) matches plain bytes. Its own Unicode tables are never used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern_parser.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace trireme::tokenizer {

/// Immutable; any number of threads may match with it, each with its own Matcher.
class SplitPattern {
 public:
  /// Throws ConfigError for a pattern that does not compile, that tells more than 255 kinds of
  /// characters apart or that can match the empty text.
  explicit SplitPattern(const ParsedPattern& pattern);
  ~SplitPattern();
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

 private:
  friend class Matcher;
  std::vector<uint8_t> kind_;  // (code points)
  pcre2_real_code_8* code_ = nullptr;
  bool jit_ = false;
};

/// The scratch of one thread for one pattern, reused from text to text.
class Matcher {
 public:
  explicit Matcher(const SplitPattern& pattern);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) = delete;

  /// Starts on a text of valid UTF-8, which must outlive the calls of next().
  void start(std::string_view text);
  /// The next match, in order; false after the last. *gap is the text between the match before
  /// and this one (or the end of the text).
  bool next(std::string_view* gap, std::string_view* match);

 private:
  const SplitPattern* pattern_;
  pcre2_real_match_data_8* match_data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
  std::string_view text_;
  std::string kinds_;    // one byte a code point of text_
  size_t at_text_ = 0;   // end of the match before, in bytes
  size_t at_kinds_ = 0;  // and in code points
};

}  // namespace trireme::tokenizer
