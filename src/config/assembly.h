// Settings of every source brought together in one configuration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/parse.h"
#include "config/schema.h"

namespace trireme::config {

/// Sources are applied from the strongest to the weakest, but what people write themselves (a
/// configuration file, then flags) in the order in which the later replaces the earlier.
class Assembly {
 public:
  explicit Assembly(const OptionTable& table) : table_(table) {}

  /// Written by the user: replaces what an earlier such source says; two names of one setting
  /// within one source must agree.
  void apply_typed(const Reading& reading);
  /// A file that the user named: stands beside what was said before, and must agree with it. What
  /// contradicts is reported by resolve(), with `way_out` (", or write auto in the file").
  void apply_beside(const Reading& reading, std::string_view way_out);
  /// Counts only where nothing was said; `only`: of these settings alone, when not empty.
  void apply_below(const Reading& reading, std::string_view only = {});

  void take_messages(const Reading& reading);

  RunConfig& config() { return result_.config; }
  ParseResult& result() { return result_; }
  std::vector<std::string>& problems() { return problems_; }
  bool knows(const std::string& option) const { return result_.origins.contains(option); }

 private:
  using Origins = std::map<std::string, std::string>;

  void apply_typed(const Setting& setting, Origins& layer);
  void apply_other_spelling(const Setting& setting, Origins& layer);
  void note_replaced(const Setting& setting, const Json& before, const Json& now,
                     const Origins& layer, std::string_view name);
  bool is_another_spelling(const Setting& setting) const;

  const OptionTable& table_;
  ParseResult result_;
  std::vector<std::string> problems_;
};

}  // namespace trireme::config
