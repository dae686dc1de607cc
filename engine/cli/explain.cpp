// trireme explain: what a config key means, its default, class and effects, and what it resolves to in a file.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/cli/commands.h"
#include "engine/cli/error_text.h"
#include "parsers/cli.h"
#include "parsers/config.h"
#include "parsers/config_source.h"
#include "parsers/flag_set.h"
#include "parsers/json_tree.h"
#include "parsers/model_config.h"
#include "parsers/schema/explain.h"
#include "parsers/schema/resolved.h"
#include "parsers/schema/schema.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string key, config;
  ModelFlags model;
  int64_t num_gpus = 1, hidden_size = 0;
  bool all = false, markdown = false, help = false;
};

struct Table {
  Options o;
  FlagSet set{"explain"};

  Table() {
    set.AddPositional(
        "KEY", "a path (zero_optimization.stage), its end (stage), a section, a flag, or the id of an error", o.key);
    set.Add("deepspeed_config", "FILE", "also say what the key resolves to in this file, and why", o.config);
    set.Add("num_gpus", "N", "ranks for which the file is resolved", o.num_gpus);
    set.Add("model_name", "NAME", "the model that it is for: \"auto\" sizes follow from its width", o.model.model_name);
    set.Add("hidden-size", "N", "that width itself; 0: not known", o.hidden_size);
    set.Add("all", "every key of every section, a line each", o.all);
    set.Add("markdown", "the page docs/config.md", o.markdown);
    set.Add("help", "this text", o.help);
  }
};

// At most so many names in a message.
constexpr size_t kMostNames = 8;

std::vector<std::string> PathsOf(const std::vector<const SchemaKey*>& keys) {
  std::vector<std::string> paths;
  for (const SchemaKey* key : keys) paths.push_back(key->path);
  return paths;
}

std::string Some(std::vector<std::string> names) {
  const size_t more = names.size() > kMostNames ? names.size() - kMostNames : 0;
  names.resize(names.size() - more);
  return Join(names, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

[[noreturn]] void FailUnknown(const Schema& schema, const std::string& name) {
  std::vector<std::string> ends, paths, containing;
  for (const SchemaKey& key : schema.keys()) {
    const std::string end = key.path.substr(key.path.rfind('.') + 1);
    if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    paths.push_back(key.path);
    if (key.path.find(name) != std::string::npos) containing.push_back(key.path);
  }
  std::string fix = "`trireme explain` lists the sections, `trireme explain --all` all keys";
  if (const auto path = Suggest(name, paths)) {
    fix = fmt::format("did you mean {}?", *path);
  } else if (const auto end = Suggest(name.substr(name.rfind('.') + 1), ends)) {
    fix = fmt::format("did you mean {}?", Some(PathsOf(schema.EndingIn(*end))));
  } else if (!containing.empty()) {
    fix = fmt::format("keys whose names contain it: {}", Some(containing));
  }
  throw Error(ErrorCode::kUsage, "CLI010", "no key of a ds_config.json has this name", name, fix);
}

// The keys that a flag of the command line fills: "clip-grad".
std::vector<const SchemaKey*> FilledBy(const Schema& schema, std::string flag) {
  std::ranges::replace(flag, '_', '-');
  std::vector<const SchemaKey*> keys;
  for (const SchemaKey& key : schema.keys()) {
    const bool fills = std::ranges::find(key.flags, "--" + flag) != key.flags.end();
    if (fills && key.alias_of.empty()) keys.push_back(&key);
  }
  return keys;
}

// What `train --help` or `plan --help` says about a flag that fills no key; "" where there is none.
std::string FlagText(std::string name) {
  std::ranges::replace(name, '_', '-');
  for (const auto& [command, help] : {std::pair("train", TrainHelp()), std::pair("plan", PlanHelp())}) {
    for (std::string line : Split(help, '\n')) {
      const std::string written = line;
      const size_t end = line.find(' ', line.find_first_not_of(' '));
      std::replace(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(std::min(end, line.size())), '_', '-');
      if (line.starts_with("  --" + name + " ")) return fmt::format("a flag of `trireme {}`\n{}\n", command, written);
    }
  }
  return "";
}

// The key that a word means: its whole path, an end that no other path has, or a flag that fills it.
const SchemaKey& KeyOf(const Schema& schema, const std::string& name) {
  const SchemaKey* exact = schema.Find(name);
  if (exact != nullptr) return exact->alias_of.empty() ? *exact : *schema.Find(exact->alias_of);
  std::vector<const SchemaKey*> found = schema.EndingIn(name);
  if (found.empty()) found = FilledBy(schema, name);
  if (found.empty()) FailUnknown(schema, name);
  if (found.size() == 1) return *found.front();
  throw Error(ErrorCode::kUsage, "CLI011", fmt::format("{} keys have this name", found.size()), name,
              fmt::format("write one of {}", Some(PathsOf(found))));
}

// Where the file has a key that nothing reads, under whichever name.
std::optional<int> LineOf(const Schema& schema, const SchemaKey& key, const std::string& file) {
  Diagnostics ignored;
  const std::optional<ConfigSource> source = ReadConfigSource(file, ignored);
  const std::optional<JsonValue> root = source ? ReadJson(source->text, source->name, ignored) : std::nullopt;
  std::vector<std::string> names = {key.path};
  for (const SchemaKey* alias : schema.AliasesOf(key.path)) names.push_back(alias->path);
  for (const std::string& name : names) {
    const JsonValue* value = root ? &*root : nullptr;
    int line = 0;
    for (const std::string& part : Split(name, '.')) {
      const JsonMember* member = value == nullptr ? nullptr : value->Find(part);
      line = member == nullptr ? 0 : member->line;
      value = member == nullptr ? nullptr : &member->value;
    }
    if (line > 0) return line;
  }
  return std::nullopt;
}

int64_t WidthOf(const Options& options) {
  if (options.model.model_name.empty()) return options.hidden_size;
  Diagnostics diagnostics;
  const ModelSpec model = ResolveModel(options.model, /*init_from=*/"", /*tp_size=*/1, diagnostics);
  diagnostics.ThrowIfErrors();
  return model.hidden_size;
}

// "here  2, from ds.json:3", and what the parser says about the key.
void PrintHere(const Schema& schema, const SchemaKey& key, const Options& options) {
  TrainFlags flags;
  flags.for_plan = true;
  const ParseResult parsed = ParseConfigFile(options.config, flags, options.num_gpus, WidthOf(options));
  if (parsed.config.origins.empty()) parsed.diagnostics.ThrowIfErrors();  // no file, or no syntax
  const std::optional<ResolvedRow> row = ResolvedOf(schema, key, parsed.config);
  if (row) {
    fmt::print("  {:<11}{} ({})\n", "here", row->value, row->source);
  } else if (!key.IsSection()) {
    const std::optional<int> line = LineOf(schema, key, options.config);
    fmt::print("  {:<11}{}\n", "here",
               line ? fmt::format("at {}:{}: {}", options.config, *line, Meaning(key.Class())) : "absent");
  }
  int others = 0;
  for (const Problem& problem : parsed.diagnostics.problems()) {
    const bool of_key = problem.key == key.path || problem.key.starts_with(key.path + ".");
    if (of_key) fmt::print(stderr, "{}\n", Render(problem));
    others += !of_key && problem.severity == Severity::kError;
  }
  if (others > 0) {
    fmt::print(stderr, "{} other error{} in {}: `trireme plan {}` shows them\n", others, others == 1 ? "" : "s",
               options.config, options.config);
  }
}

int PrintError(std::string id) {
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const std::optional<std::string> text = ErrorText(id);
  if (!text) {
    throw Error(ErrorCode::kUsage, "CLI010", "no error has this id", id,
                "copy it from the message: `error CFG020: ...`");
  }
  fmt::print("{}", *text);
  return 0;
}

void PrintKey(const Schema& schema, const Options& options) {
  const bool is_key = schema.Find(options.key) != nullptr || !schema.EndingIn(options.key).empty() ||
                      !FilledBy(schema, options.key).empty();
  if (const std::string flag = is_key ? "" : FlagText(options.key); !flag.empty()) {
    fmt::print("{}", flag);
    return;
  }
  const SchemaKey& key = KeyOf(schema, options.key);
  const bool section = !schema.MembersOf(key.path).empty();
  const SchemaKey* written = schema.Find(options.key);
  if (written != nullptr && written != &key) {
    fmt::print("{}: {} of {}\n\n", written->path, written->alias_what, key.path);
  }
  fmt::print("{}", section ? ExplainSection(schema, key.path) : ExplainKey(schema, key));
  if (!options.config.empty()) PrintHere(schema, key, options);
}

void PrintAll(const Schema& schema, std::string_view section) {
  fmt::print("{}\n", ExplainSection(schema, section));
  for (const SchemaKey* key : schema.MembersOf(section)) {
    if (!schema.MembersOf(key->path).empty()) PrintAll(schema, key->path);
  }
}

}  // namespace

int RunExplain(Arguments given) {
  Table table;
  std::vector<std::string> arguments = given;
  // A flag of train as it is written there: --micro-batch-size.
  if (!arguments.empty() && arguments[0].starts_with("--") && !FlagText(arguments[0].substr(2)).empty() &&
      (arguments.size() == 1 || arguments[1].starts_with("--"))) {
    const std::string bare = arguments[0].substr(2);
    if (bare != "help") arguments[0] = bare;
  }
  const std::string help = table.set.Help();  // before Parse: it shows the defaults
  table.set.Parse(arguments);
  const Options& options = table.o;
  if (options.help) {
    fmt::print("{}", help);
    return 0;
  }
  if (options.num_gpus < 1) {
    throw Error(ErrorCode::kUsage, "USE002", fmt::format("{} is less than 1", options.num_gpus), "--num_gpus",
                "pass at least 1");
  }
  if (IsErrorId(options.key)) return PrintError(options.key);
  const Schema schema;
  if (options.markdown) {
    fmt::print("{}", ConfigMarkdown(schema));
    return 0;
  }
  if (options.all) {
    PrintAll(schema, "");
    return 0;
  }
  if (options.key.empty()) {
    fmt::print("{}\n`trireme explain KEY` says more about a key or a section.\n", ExplainSection(schema, ""));
    return 0;
  }
  Options shown = options;
  const std::string lower = ToLower(options.key);  // keys are written in lower case
  if (schema.Find(shown.key) == nullptr && schema.EndingIn(shown.key).empty() &&
      (schema.Find(lower) != nullptr || !schema.EndingIn(lower).empty())) {
    shown.key = lower;
  }
  PrintKey(schema, shown);
  return 0;
}

}  // namespace trireme::cli
