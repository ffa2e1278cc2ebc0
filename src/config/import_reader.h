// The configuration file of a whole run, in the words of one of the programs that people come from.
#pragma once

#include <string>
#include <string_view>

#include "config/schema.h"

namespace trireme::config {

struct Import {
  Reading reading;
  /// What became of each key, one line each; empty when the names are ours or Hugging Face's.
  std::string table;
};

/// Keys that the schema has not are names of the option table. Keeps a table of what became of
/// each key; what is meaningless is told there, and not among the notices.
class ImportReader : public SchemaReader {
 public:
  using SchemaReader::SchemaReader;

  Import read_import(const Json& root, std::string_view program);

 protected:
  bool read_unknown(const std::string& path, const Json& value) override;
  void on_set(const std::string& path, const Json& value, const Setting& setting) override;
  void on_ignored(const std::string& path, const Json& value, std::string_view why) override;

  /// The other program's default, where the file says nothing.
  void set_default(std::string_view option, const Json& value, std::string_view key);
  /// Masters and moments kept as bf16, as training without fp32 copies keeps them.
  void set_narrow_state(const std::string& path);
  /// Whether the file sets this option, by any of its spellings.
  bool sets(std::string_view option);
  void refuse(const std::string& key, const Json& value, std::string_view why);

 private:
  void add_line(std::string_view key, std::string_view value, std::string_view became);

  std::string lines_;
};

Schema llama_factory_schema();
Schema axolotl_schema();

Import import_llama_factory(const Json& root, const OptionTable& table, const std::string& source);
Import import_axolotl(const Json& root, const OptionTable& table, const std::string& source);

}  // namespace trireme::config
