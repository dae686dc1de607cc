// The table of resolved values that a run prints at its start and `trireme plan` shows: what holds, and who said so.
//   for (const ResolvedRow& row : ResolvedTable(config, ResolvedRows::kNotable)) log::Info("{}", row.Text());
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parsers/config.h"
#include "parsers/schema/schema.h"

namespace trireme {

struct ResolvedRow {
  std::string key, value;
  std::string source;  // "ds.json:3", "--lr", "default", "derived: ..."
  std::string note;    // where DeepSpeed changed the default over time: which value holds, and why; else ""
};

enum class ResolvedRows {
  kNotable,  // what differs from its default, what a flag or a rule gave, and defaults that DeepSpeed changed
  kAll,
};

// In the order in which the file was read.
std::vector<ResolvedRow> ResolvedTable(const Config& config, ResolvedRows rows);
// One line a row: keys and values in columns, the source, the note below it.
std::vector<std::string> Lines(const std::vector<ResolvedRow>& rows);

// The row of a key, whichever of its names the file uses; nullopt where nothing reads it.
std::optional<ResolvedRow> ResolvedOf(const Schema& schema, const SchemaKey& key, const Config& config);

}  // namespace trireme
