// Every key that the real DeepSpeed reads is known, with its default, or its row says in words where ours differs.
// deepspeed_defaults.tsv was made by deepspeed_defaults.py with DeepSpeed 0.19.8.
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "engine/base/strings.h"
#include "parsers/schema/explain.h"
#include "parsers/schema/schema.h"

namespace trireme {
namespace {

struct Row {
  std::string path, variant, value;  // value: JSON
};

std::vector<Row> Rows() {
  std::vector<Row> rows;
  std::ifstream file(std::filesystem::path(TRIREME_TEST_DATA) / "deepspeed_defaults.tsv");
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t'), at = line.substr(0, tab).find('@');
    rows.push_back({line.substr(0, std::min(tab, at)), at == std::string::npos ? "" : line.substr(at + 1, tab - at - 1),
                    line.substr(tab + 1)});
  }
  return rows;
}

std::optional<double> Number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What holds here for the type, as the schema has it from the parser.
std::string Ours(const SchemaKey& key, const std::string& variant) {
  if (key.required) return "required";
  for (const SchemaKey::Default& entry : key.defaults) {
    if (variant.empty() || std::ranges::find(entry.variants, variant) != entry.variants.end()) return entry.value;
  }
  if (!key.known) return "absent";
  const std::string value(key.known->default_value);
  return value.empty() || value == "null" ? "absent" : value;
}

// A null of DeepSpeed is "absent" here, or what a rule gives in its place.
bool Same(const std::string& ours, std::string theirs) {
  if (theirs == "\"auto\"" && ours == "absent") return true;
  const bool nothing = theirs == "null" || theirs == "\"\"" || theirs.starts_with("{");
  if (nothing)
    return ours.empty() || ours == "''" || ours == "absent" || ours == "none" || ours.starts_with("the first's");
  if (theirs.starts_with("[") && ours == "absent") return true;  // lists of words: [] or a model's own
  if (theirs.front() == '"') theirs = theirs.substr(1, theirs.size() - 2);
  if (Number(theirs) && Number(ours)) return *Number(theirs) == *Number(ours);
  return ToLower(ours) == ToLower(theirs);
}

// Where ours differs on purpose, or is said by a rule.
constexpr std::string_view kDiffer[] = {
    "steps_per_print",
    "optimizer.params.max_grad_norm@Lamb",      // refused by both
    "scheduler.params.warmup_max_lr@WarmupLR",  // null means the optimizer's lr there
    "tensor_parallel.dtype",
    "zero_optimization.overlap_comm",  // null means a rule there
};

TEST(Defaults, AreDeepSpeedsOrTheirRowSaysWhyNot) {
  const Schema schema;
  int compared = 0;
  for (const Row& row : Rows()) {
    const SchemaKey* key = schema.Find(row.path);
    if (key == nullptr && row.path.ends_with(".layer_token_lr_schedule.enabled")) continue;  // below what is refused
    ASSERT_NE(nullptr, key) << row.path << ": DeepSpeed reads it, and no section here knows it";
    if (!key->alias_of.empty() || key->doc == nullptr) continue;
    ++compared;
    const std::string ours = Ours(*key, row.variant);
    const bool differs =
        std::ranges::find(kDiffer, row.path + (row.variant.empty() ? "" : "@" + row.variant)) != std::end(kDiffer);
    EXPECT_EQ(!differs, Same(ours, row.value))
        << row.path << " " << row.variant << ": DeepSpeed has " << row.value << ", here " << ours;
    EXPECT_TRUE(!differs || !key->doc->deepspeed.empty())
        << row.path << ": its row in parsers/schema says nothing about DeepSpeed";
  }
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace trireme
