// The regular expressions of tokenizer.json, taken apart into sets of code points and the syntax
// between them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/code_point_set.h"

namespace trireme::tokenizer {

/// A pattern in reading order: an item is a character of `sets[set]`, or else (set < 0) syntax
/// that PCRE2 and Oniguruma read alike.
struct ParsedPattern {
  struct Item {
    int set = -1;
    std::string syntax;
  };
  std::vector<Item> items;
  std::vector<CodePointSet> sets;  // distinct
};

/// Parses a pattern in Oniguruma's Ruby syntax, the one that Hugging Face `tokenizers` uses:
/// literals, classes, \p{general category}, \s \d, groups, (?i:...) over ASCII, look-around,
/// alternation and quantifiers. Throws ConfigError that quotes the pattern and names the first
/// construct beyond these (anchors, \w, nested classes, back references, ...).
ParsedPattern parse_pattern(std::string_view pattern);

/// A pattern that matches exactly `text`.
ParsedPattern literal_pattern(std::string_view text);

}  // namespace trireme::tokenizer
