// Added tokens: pieces of text that are tokens as they stand and are cut out before all else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;      // not empty
  bool lstrip = false;      // takes the white space on its left along
  bool rstrip = false;      // and on its right
  bool normalized = false;  // looked for in the normalized text, not in the raw one
  bool special = false;
};

/// Finds added tokens: the leftmost, of several there the longest. Immutable.
class AddedTokenFinder {
 public:
  /// Contents must differ.
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  struct Match {
    size_t begin = 0;  // bytes of the text, white space taken along included
    size_t end = 0;
    int32_t id = 0;
    size_t next = 0;  // where to look for the token after it: white space taken along is seen again
  };
  /// The first token that starts at or after `from` (a boundary between code points); false where
  /// none is. White space before byte `taken` is not taken along.
  bool find(std::string_view text, size_t from, size_t taken, Match* match) const;

 private:
  struct Node {
    char byte = 0;
    int32_t child = -1;    // first of a list
    int32_t sibling = -1;  // next in the list
    int32_t token = -1;    // index in tokens_
  };
  struct Token {
    int32_t id;
    bool lstrip;
    bool rstrip;
  };
  int32_t child_of(int32_t node, char byte) const;
  void insert(const std::string& content, int32_t token);

  std::vector<Node> nodes_;  // 0: the root
  std::vector<Token> tokens_;
  std::array<int32_t, 256> roots_;  // child of the root by first byte; -1: none
};

}  // namespace trireme::tokenizer
