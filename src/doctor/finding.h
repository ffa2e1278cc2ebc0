// What a check of this machine found.
#pragma once

#include <string>
#include <vector>

namespace trireme::doctor {

/// note: it works, but not as well as it could. bad: a run as asked for would not start.
enum class Verdict { good, note, bad };

struct Finding {
  Verdict verdict = Verdict::good;
  std::string subject;  // "CPU", "free space"
  std::string text;     // what was found
  std::string remedy;   // what to do, for the last two; may be empty
};
using Findings = std::vector<Finding>;

/// One line each, and what to do below it.
std::string report(const Findings& findings);
/// Nothing is bad.
bool is_healthy(const Findings& findings);

}  // namespace trireme::doctor
