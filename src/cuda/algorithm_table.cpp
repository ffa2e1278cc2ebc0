#include "cuda/algorithm_table.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace trireme::cuda {

namespace {

constexpr std::string_view kTitle = "trireme matrix products 1, ";
constexpr size_t kWordDigits = 16;

std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

/// "KEY: 8 words of 16 hexadecimal digits".
std::pair<std::string, AlgorithmWords> parse_entry(std::string_view line) {
  const size_t colon = line.rfind(": ");
  const auto fail = [&] {
    throw DataError(fmt::format("matrix product algorithms: cannot read '{}'", line));
  };
  if (colon == std::string_view::npos) fail();
  std::string_view digits = line.substr(colon + 2);
  AlgorithmWords words{};
  if (digits.size() != words.size() * kWordDigits) fail();
  for (uint64_t& word : words) {
    const char* end = digits.data() + kWordDigits;
    const auto [at, error] = std::from_chars(digits.data(), end, word, 16);
    if (error != std::errc() || at != end) fail();
    digits.remove_prefix(kWordDigits);
  }
  return {std::string(line.substr(0, colon)), words};
}

}  // namespace

std::optional<AlgorithmWords> AlgorithmTable::find(const std::string& key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second.words;
}

void AlgorithmTable::set(const std::string& key, const AlgorithmWords& algorithm) {
  entries_[key] = {algorithm, true};
}

void AlgorithmTable::use(const std::string& key) {
  const auto found = entries_.find(key);
  check(found != entries_.end(), "no algorithm for {}", key);
  found->second.used = true;
}

std::string AlgorithmTable::text_of(bool only_used) const {
  std::string text = fmt::format("{}{}\n", kTitle, library_);
  for (const auto& [key, entry] : entries_) {
    if (only_used && !entry.used) continue;
    text += key + ": ";
    for (const uint64_t word : entry.words) text += fmt::format("{:016x}", word);
    text += '\n';
  }
  return text;
}

std::string AlgorithmTable::text() const { return text_of(false); }
std::string AlgorithmTable::text_of_used() const { return text_of(true); }

bool AlgorithmTable::read(std::span<const std::string> texts) {
  std::map<std::string, Entry> entries;
  bool known = true;
  for (std::string_view text : texts) {
    if (text.empty()) continue;
    const std::string_view first = next_line(text);
    if (!first.starts_with(kTitle)) {
      throw DataError(
          fmt::format("matrix product algorithms: the text begins with '{}'", first.substr(0, 80)));
    }
    if (first.substr(kTitle.size()) != library_) {
      known = false;
      continue;
    }
    while (!text.empty()) {
      auto [key, words] = parse_entry(next_line(text));
      entries.try_emplace(std::move(key), Entry{words, false});
    }
  }
  entries_ = std::move(entries);
  return known;
}

}  // namespace trireme::cuda
