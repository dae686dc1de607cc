// The words of `trireme explain` and docs/config.md about a schema.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/schema/resolved.h"
#include "parsers/schema/schema.h"

namespace trireme {

// One key: meaning, class, values, default, "auto", flags, effects, DeepSpeed's ways, other names.
std::string ExplainKey(const Schema& schema, const SchemaKey& key);
// A section: what it is, then a line for each of its keys. "": the top level.
std::string ExplainSection(const Schema& schema, std::string_view section);

std::string ValuesText(const SchemaKey& key);   // "whole number, at least 0"
std::string DefaultText(const SchemaKey& key);  // "0.001; 0.01 for Adagrad"
std::string ClassText(const SchemaKey& key);    // "act: does what it says"; with the parser's reason where it has one

// docs/config.md as a whole.
std::string ConfigMarkdown(const Schema& schema);

}  // namespace trireme
