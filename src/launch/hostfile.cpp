#include "launch/hostfile.h"

#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace trireme::launch {
namespace {

constexpr int kMostSlots = 4096;

/// -1 for anything but a whole number up to kMostSlots.
int whole(std::string_view text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fits =
      code == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMostSlots;
  return fits ? value : -1;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.emplace_back(text);
  return parts;
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  constexpr int64_t kLongest = 16 << 20;
  constexpr std::string_view kSlots = "slots=";
  std::vector<HostSlots> hosts;
  std::istringstream lines(read_text_file(path, kLongest));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    HostSlots host;
    std::string slots, more;
    if (!(words >> host.host)) continue;
    words >> slots;
    host.slots = slots.starts_with(kSlots) ? whole(std::string_view(slots).substr(6)) : -1;
    if (host.slots < 1 || words >> more) {
      throw DataError(
          fmt::format("{}:{}: give 'HOST slots=N', not '{}'", path, number, printable(line)));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw DataError(fmt::format("{}: it names no host", path));
  return hosts;
}

std::vector<HostFilter> parse_host_filter(std::string_view field, std::string_view text) {
  std::vector<HostFilter> filters;
  for (const std::string& part : split(text, '@')) {
    const size_t colon = std::min(part.find(':'), part.size());
    HostFilter filter{part.substr(0, colon), {}};
    bool good = !filter.host.empty();
    if (colon < part.size()) {
      for (const std::string& slot : split(std::string_view(part).substr(colon + 1), ',')) {
        filter.slots.push_back(whole(slot));
        good = good && filter.slots.back() >= 0;
      }
    }
    if (!good) throw ConfigError(field, printable(text), "give HOST or HOST:0,1, joined by '@'");
    filters.push_back(std::move(filter));
  }
  return filters;
}

}  // namespace trireme::launch
