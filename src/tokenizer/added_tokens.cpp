#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/code_point_set.h"
#include "tokenizer/utf8.h"

namespace trireme::tokenizer {
namespace {

size_t white_space_before(std::string_view text, size_t at, size_t taken) {
  const CodePointSet space = white_space();
  while (at > taken) {
    size_t previous = at - 1;
    while (previous > taken && (static_cast<unsigned char>(text[previous]) & 0xc0) == 0x80) {
      --previous;
    }
    const char* p = text.data() + previous;
    if (!space.contains(next_code_point(&p))) break;
    at = previous;
  }
  return std::max(at, taken);
}

size_t white_space_after(std::string_view text, size_t at) {
  const CodePointSet space = white_space();
  while (at < text.size()) {
    const char* p = text.data() + at;
    if (!space.contains(next_code_point(&p))) break;
    at = static_cast<size_t>(p - text.data());
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : nodes_(1) {
  for (const AddedToken& token : tokens) {
    insert(token.content, static_cast<int32_t>(tokens_.size()));
    tokens_.push_back({token.id, token.lstrip, token.rstrip});
  }
  roots_.fill(-1);
  for (int32_t node = nodes_[0].child; node >= 0;
       node = nodes_[static_cast<size_t>(node)].sibling) {
    roots_[static_cast<uint8_t>(nodes_[static_cast<size_t>(node)].byte)] = node;
  }
}

int32_t AddedTokenFinder::child_of(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].sibling;
  }
  return child;
}

void AddedTokenFinder::insert(const std::string& content, int32_t token) {
  int32_t node = 0;
  for (const char byte : content) {
    int32_t child = child_of(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, nodes_[static_cast<size_t>(node)].child, -1});
      nodes_[static_cast<size_t>(node)].child = child;
    }
    node = child;
  }
  nodes_[static_cast<size_t>(node)].token = token;
}

bool AddedTokenFinder::find(std::string_view text, size_t from, size_t taken, Match* match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    int32_t node = roots_[static_cast<uint8_t>(text[begin])];
    if (node < 0) continue;
    int32_t found = -1;
    size_t end = begin;
    for (size_t at = begin + 1; node >= 0; ++at) {
      if (const int32_t token = nodes_[static_cast<size_t>(node)].token; token >= 0) {
        found = token;
        end = at;
      }
      if (at == text.size()) break;
      node = child_of(node, text[at]);
    }
    if (found < 0) continue;
    const Token& token = tokens_[static_cast<size_t>(found)];
    *match = {token.lstrip ? white_space_before(text, begin, taken) : begin,
              token.rstrip ? white_space_after(text, end) : end, token.id, end};
    return true;
  }
  return false;
}

}  // namespace trireme::tokenizer
