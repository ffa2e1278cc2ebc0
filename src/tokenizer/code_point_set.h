// Sets of code points: what the classes and properties of a regular expression stand for.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/unicode_table.h"

namespace trireme::tokenizer {

class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodeRange> ranges);

  void add(uint32_t first, uint32_t last);
  void add(const CodePointSet& other);
  bool contains(uint32_t code_point) const;
  CodePointSet complement() const;
  /// Sorted, disjoint, merged where they touch.
  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

/// \p{name}: a general category of Unicode 16 ("Lu") or its first letter ("L"); nullopt for
/// anything else.
std::optional<CodePointSet> property_set(std::string_view name);

/// \s: the 25 characters with the property White_Space.
CodePointSet white_space();

}  // namespace trireme::tokenizer
