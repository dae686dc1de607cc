#include "parsers/schema/explain.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/base/strings.h"

namespace trireme {
namespace {

using Type = KeyRecord::Type;

constexpr size_t kWidth = 100, kIndent = 13;

// `text` behind `line`, further lines indented.
std::string Wrapped(std::string line, size_t indent, std::string_view text) {
  std::string out;
  for (const std::string& word : Split(text, ' ')) {
    if (line.size() > indent && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line = std::string(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
  }
  return out + line + "\n";
}

// "  memory     text", wrapped under itself.
std::string Row(std::string_view title, std::string_view text) {
  return Wrapped(fmt::format("  {:<{}}", title, kIndent - 2), kIndent, text);
}

std::string TypeText(Type type) {
  switch (type) {
    case Type::kBool:
      return "true, false";
    case Type::kInteger:
      return "whole number";
    case Type::kNumber:
      return "number";
    case Type::kText:
      return "text";
    case Type::kPair:
      return "two numbers";
    case Type::kSection:
      return "object";
    case Type::kAny:
      break;
  }
  return "";
}

bool IsBounded(const Range& range) { return range.low > -1e300 || range.high < 1e300; }

// Of keys that are not read, what their default says.
std::string TypeOfText(std::string_view value) {
  if (value == "true" || value == "false") return "true, false";
  const bool number = !value.empty() && value.find_first_not_of("-+.0123456789e") == std::string_view::npos;
  if (!number) return "";
  return value.find_first_of(".e") == std::string_view::npos ? "whole number" : "number";
}

// The effects that a row has, and those that it has not in one clause.
std::vector<std::pair<std::string, std::string>> Effects(const SchemaKey& key) {
  std::vector<std::pair<std::string, std::string>> effects;
  if (key.doc == nullptr || key.IsSection()) return effects;
  std::vector<std::string> without;
  for (const auto& [name, text] : {std::pair("memory", key.doc->memory), std::pair("speed", key.doc->speed),
                                   std::pair("result", key.doc->result)}) {
    if (text.empty()) {
      without.emplace_back(name);
    } else {
      effects.emplace_back(name, std::string(text));
    }
  }
  const bool acts = key.Class() == KeyClass::kAct || key.Class() == KeyClass::kHonour;
  if (!without.empty() && acts) effects.emplace_back("no effect", "on " + Join(without, ", "));
  return effects;
}

std::string NamesText(const Schema& schema, const SchemaKey& key) {
  std::string names;
  for (const SchemaKey* alias : schema.AliasesOf(key.path)) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", alias->path, alias->alias_what);
  }
  return names;
}

}  // namespace

std::string ValuesText(const SchemaKey& key) {
  const std::string_view said = key.doc == nullptr ? "" : key.doc->values;
  std::string text = TypeText(key.type);
  if (key.known && !key.known->choices.empty()) return Join(Split(key.known->choices, '|'), ", ");
  if (key.known && text.empty()) text = TypeOfText(key.known->default_value);
  if (IsBounded(key.range)) text += ", " + key.range.Text();
  if (said.empty()) return text;
  const bool choices = key.type == Type::kAny || key.type == Type::kText || key.type == Type::kPair ||
                       (said.front() >= '0' && said.front() <= '9');
  return choices ? std::string(said) : fmt::format("{}; {}", text, said);
}

std::string DefaultText(const SchemaKey& key) {
  if (key.doc != nullptr && !key.doc->by_default.empty()) return std::string(key.doc->by_default);
  if (key.required) return "none: it must be written";
  if (key.known && key.defaults.empty()) {
    const std::string_view value = key.known->default_value;
    return std::string(value.empty() || value == "null" ? "absent" : value);
  }
  if (key.IsSection() || key.defaults.empty()) return "absent";
  std::string text;
  for (const SchemaKey::Default& entry : key.defaults) {
    if (!text.empty()) text += "; ";
    text += entry.value.empty() ? "\"\"" : entry.value;
    if (key.defaults.size() > 1) text += fmt::format(" for {}", Join(entry.variants, ", "));
  }
  return text;
}

std::string ClassText(const SchemaKey& key) {
  const KeyClass key_class = key.Class();
  std::string text = fmt::format("{}: {}", Name(key_class), Meaning(key_class));
  if (key.known && !key.known->why.empty()) text += fmt::format(" ({})", key.known->why);
  return text;
}

std::string ExplainKey(const Schema& schema, const SchemaKey& key) {
  std::string text = key.path + "\n";
  if (key.doc != nullptr) text += Wrapped("  ", 2, key.doc->meaning) + "\n";
  if (!key.IsSection() || key.known) text += Row("class", ClassText(key));
  if (!key.variants.empty()) text += Row("of type", Join(key.variants, ", "));
  const std::string values = key.IsSection() ? "" : ValuesText(key);
  if (!values.empty()) text += Row("values", values);
  text += Row("default", DefaultText(key));
  if (!key.IsSection()) text += Row("\"auto\"", AutoRuleOf(key));
  if (!key.flags.empty()) text += Row("flag", Join(key.flags, ", "));
  for (const auto& [name, effect] : Effects(key)) text += Row(name, effect);
  if (key.doc != nullptr && !key.doc->deepspeed.empty()) text += Row("DeepSpeed", key.doc->deepspeed);
  if (key.doc != nullptr && !key.doc->drift.empty()) text += Row("changed", key.doc->drift);
  if (const std::string names = NamesText(schema, key); !names.empty()) text += Row("names", names);
  return text;
}

std::string ExplainSection(const Schema& schema, std::string_view section) {
  std::string text;
  if (const SchemaKey* key = schema.Find(section)) {
    text = ExplainKey(schema, *key) + "\n";
  }
  size_t width = 0;
  const std::vector<const SchemaKey*> members = schema.MembersOf(section);
  for (const SchemaKey* key : members) width = std::max(width, key->path.size());
  for (const SchemaKey* key : members) {
    text += fmt::format(
        "  {:<{}}  {:<6}  {}{}\n", key->path, width, Name(key->Class()),
        schema.MembersOf(key->path).empty() ? "" : "section: ", key->doc == nullptr ? "" : key->doc->meaning);
  }
  return text;
}

}  // namespace trireme
