// The schema that `trireme explain` and docs/config.md speak from: each key that is parsed has its row, each row its
// key, and what a row says about class, default and choices is what the parser does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "engine/base/strings.h"
#include "parsers/schema/explain.h"
#include "parsers/schema/schema.h"
#include "parsers/sections/sections.h"
#include "tests/unit/parsers/config_testing.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

const Schema& TheSchema() {
  static const Schema schema;
  return schema;
}

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Schema, EveryKeyThatIsParsedHasOneRow) {
  for (const SchemaKey& key : TheSchema().keys()) {
    EXPECT_NE(key.doc == nullptr, key.alias_of.empty())
        << key.path
        << (key.doc == nullptr ? ": parsed, and without a row in parsers/schema/docs_*.cpp"
                               : ": a row, and an alias in parsers/schema/key_doc.cpp");
    if (!key.alias_of.empty()) {
      const SchemaKey* own = TheSchema().Find(key.alias_of);
      EXPECT_TRUE(own != nullptr && own->alias_of.empty()) << key.path << " is an alias of " << key.alias_of;
    }
  }
}

TEST(Schema, EveryRowIsOfAKeyThatIsParsed) {
  std::set<std::string_view> seen;
  for (const KeyDoc* doc : KeyDocs()) {
    EXPECT_NE(nullptr, TheSchema().Find(doc->key)) << doc->key << ": a row, but no section reads it";
    EXPECT_TRUE(seen.insert(doc->key).second) << doc->key << " has two rows";
    EXPECT_FALSE(doc->meaning.empty()) << doc->key;
  }
  for (const KeyAlias& alias : KeyAliases()) EXPECT_NE(nullptr, TheSchema().Find(alias.name)) << alias.name;
}

// The probes must make the parser look at everything: whatever name the sections' sources ask for is in the schema.
TEST(Schema, ProbesReachEveryNameOfTheSources) {
  std::set<std::string> names;
  for (const SchemaKey& key : TheSchema().keys()) names.insert(key.path.substr(key.path.rfind('.') + 1));
  const std::regex asked(
      R"re((?:\.(?:Read|ReadOptional|Fill|Section|Take|Know)|(?:->)(?:Read|ReadOptional|Section))\((?:[a-z]+, )?"([A-Za-z0-9_-]+)"|\{"([A-Za-z0-9_]+)", k(?:NoEffect|Refused)|\.key = "([A-Za-z0-9_]+)")re");
  size_t found = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(TRIREME_SOURCE_DIR) / "parsers/sections")) {
    const std::string text = ReadText(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), asked), end; it != end; ++it) {
      std::string name;
      for (size_t group = 1; group <= 3; ++group) name += (*it)[group].str();
      EXPECT_TRUE(names.contains(name)) << entry.path().filename() << " asks for \"" << name << "\"";
      ++found;
    }
  }
  EXPECT_GT(found, 150u);
}

ParseResult ParseProbe(const SchemaKey& key, const std::string& value, const std::string& variant) {
  return ParseRecording(ProbeText(key.path, value, variant), "probe", testing::WithLr(), 1, 0, nullptr);
}

bool Says(const ParseResult& result, const SchemaKey& key, std::initializer_list<std::string_view> ids) {
  return std::ranges::any_of(result.diagnostics.problems(), [&](const Problem& problem) {
    return std::ranges::find(ids, problem.id) != ids.end() &&
           (problem.key == key.path || key.path.starts_with(problem.key + "."));
  });
}

// A key of class refuse is an error (CFG009, CFG033) when it is on; one of class act is none.
TEST(Schema, KeysAreTreatedAsTheirClassSays) {
  int refused = 0, tried = 0;
  for (const SchemaKey& key : TheSchema().keys()) {
    if (key.defaults.empty() || !key.alias_of.empty()) continue;
    const std::string off = key.defaults.front().value;
    std::string on = off == "true" ? "false" : "true";
    if (key.type == KeyRecord::Type::kInteger) on = "2";
    if (key.type != KeyRecord::Type::kBool && key.type != KeyRecord::Type::kInteger) continue;
    const ParseResult result = ParseProbe(key, on, key.variants.empty() ? "" : key.variants.front());
    EXPECT_EQ(key.Class() == KeyClass::kRefuse, Says(result, key, {"CFG009", "CFG033"})) << key.path;
    refused += key.Class() == KeyClass::kRefuse;
    ++tried;
  }
  EXPECT_GE(refused, 3);
  EXPECT_GE(tried, 50);
}

// Each choice that a row lists is taken, and another word is not.
TEST(Schema, ChoicesOfATextAreThoseOfTheParser) {
  const std::map<std::string, std::vector<std::string>> choices = {
      {"communication_data_type", {"fp32", "bf16", "fp16", "FP32"}},
      {"data_types.grad_accum_dtype", {"fp32"}},
      {"zero_optimization.offload_optimizer.device", {"none", "cpu", "nvme"}},
      {"zero_optimization.offload_param.device", {"none", "cpu"}},
      {"scheduler.params.warmup_type", {"log", "linear"}},
      {"trireme.loss_normalization", {"tokens"}},
      {"trireme.recompute", {"keep", "cheap", "full", "full:8,cheap:4"}},
      {"trireme.pipeline.schedule", {"1f1b", "zero-bubble", "gpipe"}},
      {"data_efficiency.data_sampling.dynamic_batching.lr_scaling_method", {"linear", "sqrt", "none"}},
      {"data_efficiency.data_sampling.dynamic_batching.sequence_picking_order", {"dataloader", "random", "seqlen"}}};
  for (const auto& [path, words] : choices) {
    const SchemaKey* key = TheSchema().Find(path);
    ASSERT_NE(nullptr, key) << path;
    const std::string variant = key->variants.empty() ? "" : key->variants.front();
    for (const std::string& word : words) {
      EXPECT_FALSE(Says(ParseProbe(*key, "\"" + word + "\"", variant), *key, {"CFG005", "CFG009", "CFG012"}))
          << path << " " << word;
    }
    EXPECT_TRUE(Says(ParseProbe(*key, "\"wrong\"", variant), *key, {"CFG012"})) << path;
  }
}

// Values that can be typed twice are not: the struct of the parser is the source.
TEST(Schema, DefaultsAndFlagsComeFromTheParser) {
  const auto text = [](const char* path) { return DefaultText(*TheSchema().Find(path)); };
  EXPECT_EQ("0", text("zero_optimization.stage"));
  EXPECT_EQ("1", text("gradient_clipping"));
  EXPECT_EQ("0.001 for Adam, AdamW, SGD, Lion, Lamb; 0.01 for Adagrad", text("optimizer.params.lr"));
  EXPECT_EQ("true", text("zero_optimization.offload_optimizer.pin_memory"));
  EXPECT_EQ("none: it must be written", text("scheduler.params.cycle_max_lr"));
  EXPECT_EQ("optimizer.params.lr for WarmupLR; 0.001 for WarmupDecayLR", text("scheduler.params.warmup_max_lr"));
  EXPECT_EQ((std::vector<std::string>{"--adam-beta1", "--adam-beta2"}),
            TheSchema().Find("optimizer.params.betas")->flags);
  EXPECT_EQ((std::vector<std::string>{"--tensor-model-parallel-size"}),
            TheSchema().Find("tensor_parallel.tp_size")->flags);
  EXPECT_EQ("whole number, at least 0", ValuesText(*TheSchema().Find("trireme.check_replicas_every")));
}

TEST(Schema, AutoIsWhatTheParserMakesOfIt) {
  const auto rule = [](const char* path) { return AutoRuleOf(*TheSchema().Find(path)); };
  EXPECT_EQ("hidden_size^2", rule("zero_optimization.reduce_bucket_size"));
  EXPECT_EQ("0.9 x hidden_size^2, rounded down", rule("zero_optimization.stage3_prefetch_bucket_size"));
  EXPECT_EQ("--lr; an error without it", rule("optimizer.params.lr"));
  EXPECT_EQ("--clip-grad; the default without it", rule("gradient_clipping"));
  EXPECT_EQ("the default", rule("fp16.hysteresis"));
  EXPECT_EQ("an error", rule("aio.block_size"));
}

TEST(Schema, NamesAreFoundByTheirEnd) {
  const auto ends = [](const char* name) {
    std::vector<std::string> paths;
    for (const SchemaKey* key : TheSchema().EndingIn(name)) paths.push_back(key->path);
    return paths;
  };
  EXPECT_EQ(std::vector<std::string>{"zero_optimization.stage"}, ends("stage"));
  EXPECT_EQ(std::vector<std::string>{"tensor_parallel.tp_size"}, ends("autotp_size"));  // an alias gives its key
  EXPECT_GT(ends("enabled").size(), 5u);
  EXPECT_TRUE(ends("stge").empty());
}

TEST(ConfigPage, IsWhatTheProgramWrites) {
  EXPECT_EQ(ConfigMarkdown(TheSchema()), ReadText(fs::path(TRIREME_SOURCE_DIR) / "docs/config.md"))
      << "run `trireme explain --markdown > docs/config.md`";
}

// --- the table that a run prints at its start ---

std::vector<std::string> KeysOf(const std::vector<ResolvedRow>& rows) {
  std::vector<std::string> keys;
  for (const ResolvedRow& row : rows) keys.push_back(row.key);
  return keys;
}

const ResolvedRow* RowOf(const std::vector<ResolvedRow>& rows, const std::string& key) {
  const auto row = std::ranges::find(rows, key, &ResolvedRow::key);
  return row == rows.end() ? nullptr : &*row;
}

TEST(ResolvedTable, ShowsWhatDiffersWhatIsDerivedAndWhatDeepSpeedChanged) {
  const ParseResult r = testing::ParseKeys(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.5, "eps": 1e-8}},
    "zero_optimization": {"stage": 0}, "bf16": {"enabled": true})",
                                           {});
  ASSERT_FALSE(r.diagnostics.HasErrors()) << r.diagnostics.Render();
  const std::vector<ResolvedRow> rows = ResolvedTable(r.config, ResolvedRows::kNotable);
  ASSERT_NE(nullptr, RowOf(rows, "optimizer.params.lr"));
  EXPECT_EQ("0.5", RowOf(rows, "optimizer.params.lr")->value);
  EXPECT_EQ(nullptr, RowOf(rows, "optimizer.params.eps"));      // written, but the default
  EXPECT_EQ(nullptr, RowOf(rows, "zero_optimization.stage"));   // likewise
  EXPECT_EQ(nullptr, RowOf(rows, "fp16.initial_scale_power"));  // changed by DeepSpeed, but fp16 is off
  ASSERT_NE(nullptr, RowOf(rows, "train_micro_batch_size_per_gpu"));
  EXPECT_TRUE(testing::Contains(RowOf(rows, "train_micro_batch_size_per_gpu")->source, "derived"));
  ASSERT_NE(nullptr, RowOf(rows, "gradient_clipping"));
  EXPECT_EQ("1", RowOf(rows, "gradient_clipping")->value);
  EXPECT_TRUE(testing::Contains(RowOf(rows, "gradient_clipping")->note, "0.19.3"));
  EXPECT_GT(ResolvedTable(r.config, ResolvedRows::kAll).size(), 2 * rows.size());
}

TEST(ResolvedTable, AWrittenValueLeavesNoDoubt) {
  const ParseResult r = testing::ParseKeys(R"("gradient_clipping": 1.0, "steps_per_print": 10)");
  EXPECT_EQ(nullptr, RowOf(ResolvedTable(r.config, ResolvedRows::kNotable), "gradient_clipping"));
  const ResolvedRow* all = nullptr;
  const std::vector<ResolvedRow> rows = ResolvedTable(r.config, ResolvedRows::kAll);
  all = RowOf(rows, "gradient_clipping");
  ASSERT_NE(nullptr, all);
  EXPECT_EQ("", all->note);
  EXPECT_EQ("ds.json:1", all->source);
}

TEST(ResolvedTable, NUM_23_AFlagShowsAsTheSourceEvenOfADefaultValue) {
  TrainFlags flags = testing::WithLr();
  flags.clip_grad = 1.0;
  const std::vector<ResolvedRow> rows = ResolvedTable(testing::ParseKeys("", flags).config, ResolvedRows::kNotable);
  ASSERT_NE(nullptr, RowOf(rows, "gradient_clipping"));
  EXPECT_EQ("--clip-grad", RowOf(rows, "gradient_clipping")->source);
}

TEST(ResolvedTable, OffloadAndFp16AreNotedWhereTheyAreOn) {
  const ParseResult r = testing::ParseKeys(R"("fp16": {"enabled": true},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})");
  const std::vector<std::string> keys = KeysOf(ResolvedTable(r.config, ResolvedRows::kNotable));
  for (const char* key : {"fp16.initial_scale_power", "zero_optimization.offload_optimizer.pin_memory"}) {
    EXPECT_NE(keys.end(), std::ranges::find(keys, key)) << key;
  }
}

TEST(ResolvedTable, ARowIsFoundUnderEachName) {
  const ParseResult r = testing::Parse(
      R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"prefetch_bucket_size": 7}})",
      2);
  const std::optional<ResolvedRow> tp = ResolvedOf(TheSchema(), *TheSchema().Find("tensor_parallel.tp_size"), r.config);
  ASSERT_TRUE(tp);
  EXPECT_EQ("2", tp->value);
  const std::optional<ResolvedRow> prefetch =
      ResolvedOf(TheSchema(), *TheSchema().Find("zero_optimization.stage3_prefetch_bucket_size"), r.config);
  ASSERT_TRUE(prefetch);
  EXPECT_EQ("7", prefetch->value);
  EXPECT_FALSE(ResolvedOf(TheSchema(), *TheSchema().Find("sparse_gradients"), r.config));
}

}  // namespace
}  // namespace trireme
