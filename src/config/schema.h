// Configuration files of other programs as tables: every key at every depth is honoured,
// meaningless here, or refused by name; an unknown one is an error that names the nearest.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option_table.h"
#include "config/reasons.h"

namespace trireme::config {

/// One row of a schema. `support` as in Option.
struct SchemaKey {
  std::string_view path;  // "zero_optimization.stage"
  Support support = Support::honoured;
  /// Honoured: the option that gets the value; its rule checks it. Empty: the key says more than
  /// one thing or the same differently, and the file's reader knows what.
  std::string_view option = {};
  Kind kind = Kind::json;  // of the others
  /// Refused: the values that are accepted. Meaningless: those that need no report.
  std::vector<Json> neutral = {};
  std::string_view why = {};
};

class Schema {
 public:
  void honour(std::string_view path, std::string_view option);
  void honour_in_code(std::string_view path, Kind kind, std::string_view why);
  void ignore(std::string_view path, Kind kind, std::string_view why,
              std::vector<Json> neutral = {});
  void refuse(std::string_view path, Kind kind, std::vector<Json> neutral, std::string_view why);
  using Paths = std::initializer_list<std::string_view>;
  void ignore_all(std::string_view why, Paths paths);
  void refuse_all(Kind kind, const std::vector<Json>& neutral, Paths paths,
                  std::string_view why = kLater);
  /// Another spelling of a key or section.
  void alias(std::string_view spelling, std::string_view path);

  const std::vector<SchemaKey>& keys() const { return keys_; }
  const std::vector<std::pair<std::string_view, std::string_view>>& aliases() const {
    return aliases_;
  }

 private:
  std::vector<SchemaKey> keys_;
  std::vector<std::pair<std::string_view, std::string_view>> aliases_;
};

/// A value for an option, checked by its rule, and where it was said: "--learning_rate", or
/// "optimizer.params.lr in ds.json". Null: the option's word for "no value".
struct Setting {
  std::string option;
  Json value;
  std::string origin;
};

/// What a file comes to. Nothing is applied yet.
struct Reading {
  std::string source;             // how messages call the file
  std::vector<Setting> settings;  // in the order of the file
  std::vector<std::string> notices;
  std::vector<std::string> problems;

  void append(Reading other);  // keeps `source`
};

/// Reads a document by a schema. Null is as if the key were left out; "auto" is accepted for every
/// key and leaves the flag's value, or the default. Never throws ConfigError: what is wrong is
/// among the problems.
class SchemaReader {
 public:
  SchemaReader(const Schema& schema, const OptionTable& table, std::string source);
  virtual ~SchemaReader() = default;
  SchemaReader(const SchemaReader&) = delete;
  SchemaReader& operator=(const SchemaReader&) = delete;

  Reading read(const Json& root);

 protected:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    reading_.problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void bad_value(const std::string& path, const Json& value, std::string_view remedy);
  /// `path` sets `option`; the value is checked by its rule (BadValue).
  void set(std::string_view option, const Json& value, const std::string& path);
  std::string origin_of(const std::string& path) const;
  /// The value of a refused or meaningless key.
  void read_other(const SchemaKey& key, const std::string& path, const Json& value);

  /// An honoured key without an option. May throw BadValue.
  virtual void read_in_code(const std::string& path, const Json& value);
  /// Before a section is read; false leaves it out.
  virtual bool enters(const std::string& path, const Json& section);
  /// A key that the schema has not; false makes it a problem.
  virtual bool read_unknown(const std::string& path, const Json& value);
  /// After the whole document.
  virtual void finish() {}
  /// After a value was set, with what the document said, and for a meaningless one.
  virtual void on_set(const std::string&, const Json&, const Setting&) {}
  virtual void on_ignored(const std::string& path, const Json& value, std::string_view why);
  /// Keys and sections of a section; "": of the document.
  std::vector<std::string_view> names_in(const std::string& section) const;
  /// How messages call a key.
  virtual std::string label(const std::string& path) const { return path; }

  const OptionTable& table() const { return table_; }
  Reading& reading() { return reading_; }

 private:
  bool is_section(const std::string& path) const;
  void read_section(const Json& section, const std::string& prefix);
  void read_entry(const std::string& prefix, const std::string& name, const Json& value);
  void read_key(const SchemaKey& key, const std::string& path, const Json& value);
  std::string suggestion(const std::string& prefix, const std::string& name) const;
  void report_ignored();

  const OptionTable& table_;
  Reading reading_;
  const Json* said_ = nullptr;  // the value of the key that is being read
  std::map<std::string_view, const SchemaKey*> keys_;
  std::map<std::string, std::string, std::less<>> aliases_;
  std::map<std::string_view, std::vector<std::string>> ignored_;  // why -> keys
};

/// A JSON file, or the JSON itself (it starts with '{'), given to the option `field`. `name`: how
/// messages call JSON without a file. What cannot be read is a problem, and the root is then null.
Json read_given_json(std::string_view field, const std::string& given, std::string_view name,
                     Reading* reading);

}  // namespace trireme::config
