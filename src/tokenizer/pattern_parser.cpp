#include "tokenizer/pattern_parser.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace trireme::tokenizer {
namespace {

bool is_ascii_letter(uint32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  ParsedPattern parse() {
    while (at_ < pattern_.size()) parse_next();
    if (ignore_case_.size() != 1) refuse("an unclosed group");
    return std::move(result_);
  }

  void add_set(CodePointSet set) {
    const auto known = std::find(result_.sets.begin(), result_.sets.end(), set);
    const auto index = static_cast<int>(known - result_.sets.begin());
    if (known == result_.sets.end()) result_.sets.push_back(std::move(set));
    result_.items.push_back({index, {}});
  }

  ParsedPattern take() { return std::move(result_); }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw ConfigError(fmt::format(
        "tokenizer.json: the regular expression {} uses {}, which is not supported; use a "
        "tokenizer whose splits are made of literals, classes, general categories and groups",
        pattern_, construct));
  }

  bool looking_at(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  uint32_t take_code_point() {
    const char* p = pattern_.data() + at_;
    const uint32_t c = next_code_point(&p);
    at_ = static_cast<size_t>(p - pattern_.data());
    return c;
  }

  void syntax(size_t size) {
    result_.items.push_back({-1, std::string(pattern_.substr(at_, size))});
    at_ += size;
  }

  void parse_next() {
    const uint32_t previous = std::exchange(previous_literal_, 0);
    switch (pattern_[at_]) {
      case '|':
      case '*':
      case '+':
      case '?':
        return syntax(1);
      case '(':
        return open_group();
      case ')':
        if (ignore_case_.size() == 1) refuse("an unopened group");
        ignore_case_.pop_back();
        return syntax(1);
      case '{':
        return parse_interval();
      case '[':
        return add_class(parse_class());
      case '.':
        ++at_;
        return add_set(CodePointSet{{'\n', '\n'}}.complement());
      case '^':
      case '$':
        refuse("an anchor");
      case '\\': {
        const Escape escape = parse_escape();
        return escape.literal ? add_literal(escape.code_point, previous) : add_class(escape.set);
      }
      default:
        return add_literal(take_code_point(), previous);
    }
  }

  void open_group() {
    for (const std::string_view prefix : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!looking_at(prefix)) continue;
      ignore_case_.push_back(ignore_case_.back());
      return syntax(prefix.size());
    }
    const bool ignoring = looking_at("(?i:");
    if (!ignoring && looking_at("(?")) refuse(pattern_.substr(at_, 4));
    ignore_case_.push_back(ignoring || ignore_case_.back());
    result_.items.push_back({-1, "(?:"});
    at_ += ignoring ? 4 : 1;
  }

  // {n}, {n,} and {n,m}; what may follow differs between the two engines.
  void parse_interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && pattern_[end] >= '0' && pattern_[end] <= '9') ++end;
      return end > begin;
    };
    bool good = digits();
    if (good && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      digits();
    }
    good = good && end < pattern_.size() && pattern_[end] == '}';
    if (!good) refuse("a '{' that is not {n}, {n,} or {n,m}");
    ++end;
    if (end < pattern_.size() && (pattern_[end] == '+' || pattern_[end] == '?')) {
      refuse("'+' or '?' after an interval");
    }
    syntax(end - at_);
  }

  struct Escape {
    bool literal = false;
    uint32_t code_point = 0;
    CodePointSet set;
  };
  static Escape literal(uint32_t code_point) { return {true, code_point, {}}; }

  Escape parse_escape() {
    const size_t begin = at_++;
    if (at_ >= pattern_.size()) refuse("a trailing backslash");
    const uint32_t c = take_code_point();
    switch (c) {
      case 'n':
        return literal('\n');
      case 'r':
        return literal('\r');
      case 't':
        return literal('\t');
      case 'f':
        return literal('\f');
      case 'v':
        return literal('\v');
      case 'x':
        return literal(looking_at("{") ? parse_braced_hex() : parse_hex(2));
      case 'u':
        return literal(parse_hex(4));
      case 's':
        return {false, 0, white_space()};
      case 'S':
        return {false, 0, white_space().complement()};
      case 'd':
        return {false, 0, *property_set("Nd")};
      case 'D':
        return {false, 0, property_set("Nd")->complement()};
      case 'p':
      case 'P':
        return {false, 0, parse_property(c == 'P')};
      default:
        if (c >= 0x80 || is_ascii_letter(c) || (c >= '0' && c <= '9')) {
          refuse(pattern_.substr(begin, at_ - begin));
        }
        return literal(c);
    }
  }

  uint32_t hex_value(std::string_view digits) const {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value, 16);
    if (digits.empty() || error != std::errc() || end != digits.end() || value >= kNumCodePoints) {
      refuse("a hexadecimal escape that is no code point");
    }
    return value;
  }
  uint32_t parse_hex(size_t size) {
    const std::string_view digits = pattern_.substr(at_, size);
    if (digits.size() != size) refuse("a short hexadecimal escape");
    at_ += size;
    return hex_value(digits);
  }
  std::string_view parse_braces() {
    const size_t end = pattern_.find('}', at_);
    if (!looking_at("{") || end == std::string_view::npos) refuse("an escape without {...}");
    const std::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  uint32_t parse_braced_hex() { return hex_value(parse_braces()); }

  CodePointSet parse_property(bool negated) {
    std::string_view name = parse_braces();
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    auto set = property_set(name);
    if (!set) refuse(fmt::format("the property \\p{{{}}}", name));
    return negated ? set->complement() : *std::move(set);
  }

  CodePointSet parse_class() {
    ++at_;  // [
    const bool negated = looking_at("^");
    if (negated) ++at_;
    CodePointSet set;
    if (looking_at("]")) refuse("a class that starts with ']'");
    while (true) {
      if (at_ >= pattern_.size()) refuse("an unclosed class");
      if (looking_at("]")) break;
      if (looking_at("[")) refuse("a class inside a class");
      if (looking_at("&&")) refuse("an intersection of classes");
      parse_class_member(&set);
    }
    ++at_;  // ]
    return negated ? set.complement() : set;
  }

  void parse_class_member(CodePointSet* set) {
    const Escape first = looking_at("\\") ? parse_escape() : literal(take_code_point());
    if (!first.literal) {
      set->add(first.set);
      return;
    }
    const bool range = looking_at("-") && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
    if (!range) {
      set->add(first.code_point, first.code_point);
      return;
    }
    ++at_;  // -
    if (looking_at("[")) refuse("a class inside a class");
    const Escape last = looking_at("\\") ? parse_escape() : literal(take_code_point());
    if (!last.literal || last.code_point < first.code_point) refuse("a range that is not a range");
    set->add(first.code_point, last.code_point);
  }

  void add_literal(uint32_t c, uint32_t previous) {
    if (ignore_case_.back()) {
      // Foldings of two letters into one character (ß, ﬁ, ...) are beyond sets.
      for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
        const auto lower = [](uint32_t x) { return static_cast<char>(x | 0x20); };
        if (is_ascii_letter(c) && lower(previous) == pair[0] && lower(c) == pair[1]) {
          refuse(fmt::format("'{}' under (?i:", pair));
        }
      }
    }
    previous_literal_ = c;
    add_class(CodePointSet{{c, c}});
  }

  void add_class(CodePointSet set) {
    if (!ignore_case_.back()) return add_set(std::move(set));
    if (!set.ranges().empty() && set.ranges().back().last >= 0x80) {
      refuse("more than ASCII under (?i:");
    }
    CodePointSet folded = set;
    for (uint32_t c = 'a'; c <= 'z'; ++c) {
      const uint32_t upper = c - 0x20;
      if (!set.contains(c) && !set.contains(upper)) continue;
      folded.add(c, c);
      folded.add(upper, upper);
      if (c == 's') folded.add(0x17f, 0x17f);    // long s
      if (c == 'k') folded.add(0x212a, 0x212a);  // Kelvin sign
    }
    add_set(std::move(folded));
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::vector<bool> ignore_case_{false};  // of each open group
  uint32_t previous_literal_ = 0;         // the item before, where that is a literal
  ParsedPattern result_;
};

}  // namespace

ParsedPattern parse_pattern(std::string_view pattern) { return Parser(pattern).parse(); }

ParsedPattern literal_pattern(std::string_view text) {
  Parser parser({});
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const uint32_t c = next_code_point(&p);
    parser.add_set(CodePointSet{{c, c}});
  }
  return parser.take();
}

}  // namespace trireme::tokenizer
