#include "metrics/line_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/file.h"

namespace trireme::metrics {

namespace fs = std::filesystem;

std::string_view value_of(std::string_view line, std::string_view key) {
  const std::string quoted = fmt::format("\"{}\": ", key);
  const size_t at = line.find(quoted);
  return at == std::string_view::npos ? std::string_view() : line.substr(at + quoted.size());
}

std::optional<int64_t> integer_of(std::string_view line, std::string_view key) {
  const std::string_view text = value_of(line, key);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end == text.data() + text.size()) return std::nullopt;
  if (*end != ',' && *end != '}') return std::nullopt;
  return value;
}

double real_of(std::string_view line, std::string_view key) {
  const std::string_view text = value_of(line, key);
  return text.empty() ? std::numeric_limits<double>::quiet_NaN()
                      : std::strtod(std::string(text).c_str(), nullptr);
}

void cut_back(const fs::path& path, std::string_view step_key, int64_t step,
              const KeptLine& visit) {
  if (!fs::exists(path)) return;
  const std::string text = read_text_file(path, std::numeric_limits<int64_t>::max());
  std::string kept;
  kept.reserve(text.size());
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++line_number;
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // torn by a kill or a full disk
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    const auto line_step = integer_of(line, step_key);
    if (!line_step || line.back() != '}') {
      throw DataError(fmt::format("{}:{}: not a line of metrics", path.string(), line_number));
    }
    if (*line_step > step) continue;
    kept.append(line).push_back('\n');
    if (visit) visit(line, *line_step);
  }
  if (kept.size() != text.size()) replace_file(path, kept);
}

LineFile::LineFile(const fs::path& path, std::string_view step_key, int64_t resumed_step,
                   const KeptLine& kept) {
  if (resumed_step > 0) {
    cut_back(path, step_key, resumed_step, kept);
  } else if (fs::exists(path)) {
    rename_path(path, path.string() + ".old");
  }
  file_ = AppendedFile(path);
}

}  // namespace trireme::metrics
