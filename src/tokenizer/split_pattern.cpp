#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/split_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace trireme::tokenizer {
namespace {

using Signature = std::vector<bool>;  // one flag a set: does it hold the code point?

// The code space cut wherever any set begins or ends: each part belongs wholly to a kind.
std::vector<uint32_t> boundaries(const std::vector<CodePointSet>& sets) {
  std::vector<uint32_t> at{0, kNumCodePoints};
  for (const CodePointSet& set : sets) {
    for (const CodeRange& range : set.ranges()) {
      at.push_back(range.first);
      at.push_back(range.last + 1);
    }
  }
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

std::map<Signature, int> number_kinds(const std::vector<CodePointSet>& sets,
                                      std::vector<uint8_t>* kind) {
  std::map<Signature, int> kinds;
  const std::vector<uint32_t> at = boundaries(sets);
  kind->resize(kNumCodePoints);
  for (size_t i = 0; i + 1 < at.size(); ++i) {
    Signature signature(sets.size());
    for (size_t s = 0; s < sets.size(); ++s) signature[s] = sets[s].contains(at[i]);
    const int number = kinds.try_emplace(signature, static_cast<int>(kinds.size())).first->second;
    if (number > 255) {
      throw ConfigError(
          "tokenizer.json: a regular expression tells more than 256 kinds of "
          "characters apart, which is not supported; use a simpler one");
    }
    std::fill(kind->begin() + at[i], kind->begin() + at[i + 1], static_cast<uint8_t>(number));
  }
  return kinds;
}

std::string over_kinds(const ParsedPattern& pattern, const std::map<Signature, int>& kinds) {
  std::vector<std::string> classes(pattern.sets.size());
  for (const auto& [signature, number] : kinds) {
    for (size_t s = 0; s < classes.size(); ++s) {
      if (signature[s]) classes[s] += fmt::format("\\x{:02x}", number);
    }
  }
  std::string text;
  for (const ParsedPattern::Item& item : pattern.items) {
    if (item.set < 0) {
      text += item.syntax;
    } else if (const std::string& members = classes[static_cast<size_t>(item.set)];
               members.empty()) {
      text += "[^\\x00-\\xff]";  // matches nothing
    } else {
      text += '[' + members + ']';
    }
  }
  return text;
}

}  // namespace

SplitPattern::SplitPattern(const ParsedPattern& pattern) {
  const std::string text = over_kinds(pattern, number_kinds(pattern.sets, &kind_));
  int error = 0;
  PCRE2_SIZE where = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                        PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &where, nullptr);
  if (code_ == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    throw ConfigError(fmt::format("tokenizer.json: a regular expression does not compile: {}",
                                  reinterpret_cast<const char*>(message)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code_, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    pcre2_code_free(code_);
    throw ConfigError(
        "tokenizer.json: a regular expression can match the empty text, which is "
        "not supported; make one of its parts obligatory");
  }
  jit_ = pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern::~SplitPattern() { pcre2_code_free(code_); }

Matcher::Matcher(const SplitPattern& pattern)
    : pattern_(&pattern),
      match_data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)) {
  check(match_data_ != nullptr && context_ != nullptr, "out of memory for a regular expression");
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

Matcher::~Matcher() {
  pcre2_match_data_free(match_data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

Matcher::Matcher(Matcher&& other) noexcept
    : pattern_(other.pattern_),
      match_data_(std::exchange(other.match_data_, nullptr)),
      context_(std::exchange(other.context_, nullptr)),
      stack_(std::exchange(other.stack_, nullptr)) {}

void Matcher::start(std::string_view text) {
  text_ = text;
  at_text_ = at_kinds_ = 0;
  kinds_.resize(text.size());
  const uint8_t* kind = pattern_->kind_.data();
  char* to = kinds_.data();
  for (const char *p = text.data(), *end = p + text.size(); p != end;) {
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) {
      *to++ = static_cast<char>(kind[byte]);
      ++p;
    } else {
      *to++ = static_cast<char>(kind[next_code_point(&p)]);
    }
  }
  kinds_.resize(static_cast<size_t>(to - kinds_.data()));
}

bool Matcher::next(std::string_view* gap, std::string_view* match) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(kinds_.data());
  const auto run = pattern_->jit_ ? pcre2_jit_match : pcre2_match;
  const int result = at_kinds_ == kinds_.size() ? PCRE2_ERROR_NOMATCH
                                                : run(pattern_->code_, subject, kinds_.size(),
                                                      at_kinds_, 0, match_data_, context_);
  size_t begin = kinds_.size();
  size_t end = kinds_.size();
  if (result >= 0) {
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match_data_);
    begin = found[0];
    end = found[1];
  } else if (result != PCRE2_ERROR_NOMATCH) {
    throw DataError(
        fmt::format("the tokenizer's regular expression gave up (PCRE2 error {}) on a "
                    "text of {} bytes",
                    result, text_.size()));
  }
  const bool ascii = kinds_.size() == text_.size();
  const auto advance = [&](size_t count) {
    const size_t from = at_text_;
    if (ascii) {
      at_text_ += count;
    } else {
      while (count-- > 0) at_text_ += static_cast<size_t>(utf8_length(text_[at_text_]));
    }
    return text_.substr(from, at_text_ - from);
  };
  *gap = advance(begin - at_kinds_);
  *match = advance(end - begin);
  at_kinds_ = end;
  return result >= 0;
}

}  // namespace trireme::tokenizer
