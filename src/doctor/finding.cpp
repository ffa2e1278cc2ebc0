#include "doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::doctor {

std::string report(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    const char* word = finding.verdict == Verdict::good   ? "ok"
                       : finding.verdict == Verdict::note ? "note"
                                                          : "BAD";
    text += fmt::format("{:<5} {:<18} {}\n", word, finding.subject, finding.text);
    if (!finding.remedy.empty()) text += fmt::format("{:25}-> {}\n", "", finding.remedy);
  }
  return text;
}

bool is_healthy(const Findings& findings) {
  return std::ranges::none_of(
      findings, [](const Finding& finding) { return finding.verdict == Verdict::bad; });
}

}  // namespace trireme::doctor
