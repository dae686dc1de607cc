#include "parsers/schema/resolved.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/printable.h"

namespace trireme {
namespace {

bool IsDefault(const Origin& origin) { return origin.source == "default" || origin.source.starts_with("default ("); }

// Keys of a precision that is off say nothing about the run.
bool MattersHere(const Origin& origin, const Config& config) {
  if (origin.key.starts_with("fp16.")) return config.fp16.enabled;
  if (origin.key.starts_with("bf16.")) return config.bf16.enabled;
  return true;
}

std::string DriftOf(const Origin& origin, const Config& config) {
  if (!origin.source.starts_with("default") || !MattersHere(origin, config)) return "";
  for (const KeyDoc* doc : KeyDocs()) {
    if (doc->key == origin.key) return std::string(doc->drift);
  }
  return "";
}

ResolvedRow RowOf(const Origin& origin, const Config& config) {
  constexpr size_t kLongest = 200;
  return {Printable(origin.key, kLongest), Printable(origin.value, kLongest), Printable(origin.source, kLongest),
          DriftOf(origin, config)};
}

}  // namespace

std::vector<ResolvedRow> ResolvedTable(const Config& config, ResolvedRows rows) {
  std::vector<ResolvedRow> table;
  for (const Origin& origin : config.origins) {
    ResolvedRow row = RowOf(origin, config);
    const bool by_flag = origin.source.starts_with("--");
    const bool as_default = IsDefault(origin) || (origin.value == origin.default_value && !by_flag);
    if (rows == ResolvedRows::kAll || !as_default || !row.note.empty()) table.push_back(std::move(row));
  }
  return table;
}

std::vector<std::string> Lines(const std::vector<ResolvedRow>& rows) {
  size_t key_width = 0, value_width = 0;
  for (const ResolvedRow& row : rows) {
    key_width = std::max(key_width, row.key.size());
    value_width = std::max(value_width, row.value.size());
  }
  value_width = std::min<size_t>(value_width, 24);
  std::vector<std::string> lines;
  for (const ResolvedRow& row : rows) {
    lines.push_back(fmt::format("{:<{}}  {:<{}}  {}", row.key, key_width, row.value, value_width, row.source));
    if (!row.note.empty()) lines.push_back("  " + row.note);
  }
  return lines;
}

std::optional<ResolvedRow> ResolvedOf(const Schema& schema, const SchemaKey& key, const Config& config) {
  std::vector<std::string> names = {key.path};
  for (const SchemaKey* alias : schema.AliasesOf(key.path)) names.push_back(alias->path);
  std::optional<ResolvedRow> found;
  for (const Origin& origin : config.origins) {
    if (std::ranges::find(names, origin.key) == names.end()) continue;
    // A row of the file goes before the default that its other name left.
    if (!found || found->source.starts_with("default")) found = RowOf(origin, config);
  }
  return found;
}

}  // namespace trireme
