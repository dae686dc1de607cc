// docs/config.md, written from the schema.
#include <fmt/core.h>

#include "engine/base/strings.h"
#include "parsers/schema/explain.h"

namespace trireme {
namespace {

constexpr std::string_view kHead = R"(# The keys of a ds_config.json

<!-- Made by `trireme explain --markdown > docs/config.md` from the parser itself; a test compares the two. -->

Every key that DeepSpeed 0.19 reads, and the section `trireme` of this program. `trireme explain KEY` says the same in a terminal, and with
`--deepspeed_config FILE` also what the key resolves to in a file:

```sh
trireme explain zero_optimization.stage
trireme explain gradient_clipping --deepspeed_config configs/quickstart.json
trireme explain activation_checkpointing
```

| class | a value other than the default |
|---|---|
)";

constexpr std::string_view kReading = R"(
"auto": in `fp16`, `bf16`, `zero_optimization`, `tensor_parallel` and other objects that DeepSpeed checks it means the default; elsewhere a flag or a
rule must give the value, and where there is none the key is an error. The column says what holds. Flags fill keys that are absent or "auto"; a flag that differs
from a written value is an error. Unknown keys: an error with the nearest name, or a warning in objects that DeepSpeed leaves open;
names that begin with `_` or `#` are remarks. Counts of buckets and thresholds are elements, not bytes.

## Defaults that DeepSpeed changed

A file that leaves these out meant something else in an older DeepSpeed. The table that `trireme train` and `trireme plan` print at their start says for each of them
which value holds.

| key | what changed |
|---|---|
)";

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_') out += '\\';
    out += c;
  }
  return out;
}

std::string Sentence(std::string_view text) {
  if (text.empty()) return "";
  return Escaped(text) + (text.ends_with('.') ? "" : ".");
}

// "Memory: ..." as a part of a cell.
std::string Part(std::string_view title, std::string_view text) {
  return text.empty() ? "" : fmt::format(" **{}:** {}", title, Sentence(text));
}

std::string TextCell(const Schema& schema, const SchemaKey& key) {
  std::string text;
  if (!key.variants.empty() && key.variants.size() < 5) text += fmt::format("({}) ", Join(key.variants, ", "));
  if (key.doc != nullptr) {
    text += Sentence(key.doc->meaning) + Part("Memory", key.doc->memory) + Part("Speed", key.doc->speed) +
            Part("Result", key.doc->result) + Part("DeepSpeed", key.doc->deepspeed);
  }
  const size_t dot = key.path.rfind('.');
  const SchemaKey* section = dot == std::string::npos ? nullptr : schema.Find(key.path.substr(0, dot));
  const bool said = section != nullptr && section->known && key.known && section->known->why == key.known->why;
  if (key.known && !said) text += Part("Here", key.known->why);
  std::string names;
  for (const SchemaKey* alias : schema.AliasesOf(key.path)) {
    names += fmt::format("{}`{}` ({})", names.empty() ? "" : ", ", alias->path, alias->alias_what);
  }
  return text + (names.empty() ? "" : " **Also:** " + names);
}

std::string KeyRow(const Schema& schema, const SchemaKey& key, std::string_view section) {
  const std::string name = section.empty() ? key.path : key.path.substr(section.size() + 1);
  return fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", name, Escaped(DefaultText(key)), Escaped(ValuesText(key)),
                     Name(key.Class()), key.IsSection() ? "" : Escaped(AutoRuleOf(key)), TextCell(schema, key));
}

constexpr std::string_view kColumns =
    "| key | default | values | class | \"auto\" | meaning and effects |\n|---|---|---|---|---|---|\n";

// All members, those of inner sections after their section.
void AddRows(const Schema& schema, std::string_view under, std::string_view section, std::string& text) {
  for (const SchemaKey* key : schema.MembersOf(under)) {
    text += KeyRow(schema, *key, section);
    AddRows(schema, key->path, section, text);
  }
}

}  // namespace

std::string ConfigMarkdown(const Schema& schema) {
  std::string text(kHead);
  for (const KeyClass key_class : {KeyClass::kAct, KeyClass::kHonour, KeyClass::kNote, KeyClass::kRefuse}) {
    text += fmt::format("| {} | {} |\n", Name(key_class), Meaning(key_class));
  }
  text += kReading;
  for (const SchemaKey& key : schema.keys()) {
    if (key.doc != nullptr && !key.doc->drift.empty())
      text += fmt::format("| `{}` | {} |\n", key.path, Escaped(key.doc->drift));
  }
  text += fmt::format("\n## Top level\n\n{}", kColumns);
  for (const SchemaKey* key : schema.MembersOf("")) {
    if (schema.MembersOf(key->path).empty()) text += KeyRow(schema, *key, "");
  }
  for (const SchemaKey* section : schema.MembersOf("")) {
    if (schema.MembersOf(section->path).empty()) continue;
    text += fmt::format("\n## {}\n\n{}\n\n{}", section->path, TextCell(schema, *section), kColumns);
    AddRows(schema, section->path, section->path, text);
  }
  return text;
}

}  // namespace trireme
