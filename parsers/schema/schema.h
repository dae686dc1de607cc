// Every key of a ds_config.json that the parser knows: what `trireme explain` and docs/config.md are made of.
//   const Schema schema;  const SchemaKey* key = schema.Find("zero_optimization.stage");
// Names, types, ranges, defaults and flags are the parser's own: it reads a few probe texts (one for each type of
// optimizer and scheduler, and so on) and records what it asks for. Only prose is written by hand (key_doc.h).
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/config.h"
#include "parsers/schema/key_doc.h"
#include "parsers/section_reader.h"

namespace trireme {

struct SchemaKey {
  // What holds if the key is absent; `variants` names the types of optimizer or scheduler for which it does, and is
  // empty where it holds for all.
  struct Default {
    std::string value;
    std::vector<std::string> variants;
  };

  std::string path;
  KeyRecord::Type type = KeyRecord::Type::kAny;
  Range range = {};
  SectionKind kind = SectionKind::kLoose;
  std::vector<std::string> flags;  // that fill it where it is absent or "auto"
  std::optional<KnownKey> known;
  std::vector<std::string> variants;  // types of optimizer or scheduler that have it; empty: not of these sections
  std::vector<Default> defaults;      // empty: none (a section, or a key that must be there)
  bool required = false;              // for one variant at least
  std::string alias_of;               // path of the key whose other name this is; "" for keys of their own
  std::string_view alias_what;        // "old name"
  const KeyDoc* doc = nullptr;        // null for aliases; a test forbids that it is null for another key

  bool IsSection() const { return type == KeyRecord::Type::kSection; }
  KeyClass Class() const;
};

class Schema {
 public:
  Schema();

  std::span<const SchemaKey> keys() const { return keys_; }  // by path, a section before its members
  const SchemaKey* Find(std::string_view path) const;        // exact
  // All keys whose path is `name` or ends in "." + name; an alias gives its key, once.
  std::vector<const SchemaKey*> EndingIn(std::string_view name) const;
  std::vector<const SchemaKey*> MembersOf(
      std::string_view section) const;                                   // direct ones without aliases; "": top level
  std::vector<const SchemaKey*> AliasesOf(std::string_view path) const;  // of the key itself

 private:
  std::vector<SchemaKey> keys_;
};

// What the parser makes of "auto" under the key, as a clause: "the default", "--lr; an error without it".
std::string AutoRuleOf(const SchemaKey& key);

// The smallest config whose `path` holds `value` (JSON text) and in which the parser comes to look at it.
std::string ProbeText(std::string_view path, std::string_view value, std::string_view variant);

}  // namespace trireme
