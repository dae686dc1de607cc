// Public DeepSpeed configs (corpus/, their sources in corpus/INDEX.md) and DeepSpeed's rules as small texts: each has
// one row in expectations.txt, whose head says how to read it, and must meet it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/strings.h"
#include "engine/optim/lr_schedule.h"
#include "engine/plan/plan.h"
#include "parsers/cli.h"
#include "parsers/config.h"
#include "parsers/json_tree.h"
#include "parsers/model_config.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

const fs::path kData = TRIREME_TEST_DATA;

struct Row {
  std::string kind, name, outcome;  // "corpus", a file; "vector", a number
  int64_t ranks = 1;
  std::vector<std::string> values;  // "zero_optimization.stage=2"
  std::string text, deepspeed, differs;
  std::vector<std::string> notices, rates;
};

Row HeadOf(const std::string& line) {
  Row row;
  std::istringstream words(line);
  std::string ranks, word;
  words >> row.kind >> row.name >> ranks;
  row.ranks = std::stoll(ranks.substr(ranks.find('=') + 1));
  words >> row.outcome;
  if (row.outcome == "loads") {
    words >> word;
    row.outcome += " " + word;
    while (words >> word) row.values.push_back(word);
  } else {
    while (words >> word) row.outcome += " " + word;
  }
  return row;
}

void AddTo(Row& row, const std::string& line) {
  const size_t colon = line.find(": ");
  const std::string word = line.substr(2, colon - 2), rest = line.substr(colon + 2);
  if (word == "text") row.text += rest + "\n";
  if (word == "deepspeed") row.deepspeed = rest;
  if (word == "differs") row.differs = rest;
  if (word == "notice") row.notices.push_back(rest);
  if (word == "rates") row.rates = Split(rest, ' ');
}

std::vector<Row> Rows(const std::string& kind) {
  std::vector<Row> rows;
  std::ifstream file(kData / "expectations.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("  ")) {
      AddTo(rows.back(), line);
    } else {
      rows.push_back(HeadOf(line));
    }
  }
  std::erase_if(rows, [&](const Row& row) { return row.kind != kind; });
  return rows;
}

std::string TextOf(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool IsAuto(const JsonValue& root, const std::vector<std::string>& path) {
  const JsonValue* value = &root;
  for (const std::string& key : path) {
    const JsonMember* member = value->Find(key);
    if (member == nullptr) return false;
    value = &member->value;
  }
  return value->IsAuto();
}

// What a program around the config supplies for "auto".
TrainFlags Fill(const std::string& text) {
  Diagnostics ignored;
  const JsonValue root = ReadJson(text, "", ignored).value_or(JsonValue{});
  TrainFlags f;
  if (IsAuto(root, {"train_micro_batch_size_per_gpu"})) f.micro_batch_size = 2;
  if (IsAuto(root, {"gradient_accumulation_steps"})) f.gradient_accumulation_steps = 4;
  if (IsAuto(root, {"optimizer", "params", "lr"}) || root.Find("optimizer") == nullptr) f.lr = 1e-4;
  if (IsAuto(root, {"optimizer", "params", "betas"})) f.adam_beta1 = 0.9, f.adam_beta2 = 0.999;
  if (IsAuto(root, {"optimizer", "params", "eps"})) f.adam_eps = 1e-8;
  if (IsAuto(root, {"optimizer", "params", "weight_decay"})) f.weight_decay = 0.01;
  if (IsAuto(root, {"gradient_clipping"})) f.clip_grad = 1.0;
  if (IsAuto(root, {"bf16", "enabled"})) f.bf16 = true;
  if (IsAuto(root, {"scheduler", "params", "warmup_num_steps"})) f.lr_warmup_iters = 100;
  if (IsAuto(root, {"scheduler", "params", "total_num_steps"})) f.train_iters = 1000;
  return f;
}

TrainFlags OnlyLr(const std::string& text) {
  TrainFlags f;
  if (text.find("\"optimizer\":") == std::string::npos) f.lr = 1e-3;
  return f;
}

std::string OutcomeOf(const ParseResult& r) {
  std::string text = "refused";
  for (const Problem& problem : r.diagnostics.problems()) {
    if (problem.severity != Severity::kError) continue;
    text += (text == "refused" ? " " : ", ") + problem.id + (problem.key.empty() ? "" : " " + problem.key);
  }
  if (r.diagnostics.HasErrors()) return text;
  const BatchConfig& b = r.config.batch;
  return "loads " + std::to_string(b.train_batch_size) + "/" + std::to_string(b.train_micro_batch_size_per_gpu) + "/" +
         std::to_string(b.gradient_accumulation_steps);
}

std::string ValueOf(const Config& config, const std::string& key) {
  const auto it = std::ranges::find(config.origins, key, &Origin::key);
  return it == config.origins.end() ? "no row" : it->value;
}

void ExpectDetails(const Row& row, const ParseResult& r) {
  for (const std::string& value : row.values) {
    const std::string key = value.substr(0, value.find('='));
    EXPECT_EQ(value, key + "=" + ValueOf(r.config, key));
  }
  for (const std::string& notice : row.notices) {
    EXPECT_TRUE(std::ranges::any_of(
        r.diagnostics.problems(),
        [&](const Problem& p) { return p.severity != Severity::kError && Trim(p.id + " " + p.key) == Trim(notice); }))
        << notice << "\n"
        << r.diagnostics.Render();
  }
  const LrSchedule schedule(r.config.scheduler, r.config.optimizer);
  for (const std::string& rate : row.rates) {
    const size_t equals = rate.find('=');
    const int64_t update = std::stoll(rate.substr(0, equals));
    EXPECT_NEAR(std::stod(rate.substr(equals + 1)), schedule.At(update - 1).lr, 5e-6) << "update " << update;
  }
}

// Every message is complete, and what loads has a triangle that multiplies out and no "auto" left.
void ExpectWhole(const ParseResult& r) {
  for (const Problem& problem : r.diagnostics.problems()) {
    EXPECT_TRUE(problem.severity == Severity::kNotice || !problem.fix.empty()) << Render(problem);
    EXPECT_FALSE(problem.what.empty()) << Render(problem);
  }
  if (r.diagnostics.HasErrors()) return;
  const BatchConfig& b = r.config.batch;
  EXPECT_EQ(b.train_batch_size, b.train_micro_batch_size_per_gpu * b.gradient_accumulation_steps * r.config.dp_size);
  for (const Origin& origin : r.config.origins) EXPECT_NE("auto", origin.value) << origin.key;
}

// Another outcome than DeepSpeed's has its reason in the row, but where a feature is refused by its name.
void ExpectReason(const Row& row) {
  ASSERT_FALSE(row.deepspeed.empty());
  const bool loads_there = row.deepspeed.find_first_not_of("0123456789/;") != 0 && isdigit(row.deepspeed[0]) != 0 &&
                           row.deepspeed.find("engine:") == std::string::npos &&
                           row.deepspeed.find("Error") == std::string::npos;
  bool same = loads_there ? row.outcome == "loads " + row.deepspeed.substr(0, row.deepspeed.find(';'))
                          : row.outcome.starts_with("refused");
  if (row.outcome.starts_with("refused ")) {
    const std::vector<std::string> errors = Split(row.outcome.substr(8), ',');
    same = same || std::ranges::all_of(errors, [](const std::string& e) { return Trim(e).starts_with("CFG009"); });
  }
  EXPECT_EQ(same, row.differs.empty()) << row.deepspeed << " / " << row.outcome;
}

TEST(Corpus, EveryFileMeetsItsExpectation) {
  std::set<std::string> seen;
  for (const Row& row : Rows("corpus")) {
    SCOPED_TRACE(row.name + " on " + std::to_string(row.ranks) + " ranks");
    seen.insert(row.name);
    const std::string text = TextOf(kData / "corpus" / row.name);
    const ParseResult r = ParseConfigText(text, row.name, Fill(text), row.ranks, /*hidden_size=*/4096);
    EXPECT_EQ(row.outcome, OutcomeOf(r)) << r.diagnostics.Render(Severity::kError);
    ExpectDetails(row, r);
    ExpectWhole(r);
    ExpectReason(row);
  }
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(kData / "corpus")) {
    if (entry.path().extension() == ".json") files.insert(entry.path().filename());
  }
  EXPECT_EQ(92u, files.size());
  EXPECT_EQ(files, seen);
}

TEST(Conformance, EveryVectorMeetsItsExpectation) {
  std::set<std::string> numbers;
  for (const Row& row : Rows("vector")) {
    SCOPED_TRACE("vector " + row.name);
    // "7a" is a case of 7; 39a to 39d are numbers of their own.
    const bool own = row.name.starts_with("39");
    numbers.insert(own ? row.name : row.name.substr(0, row.name.find_first_not_of("0123456789")));
    const ParseResult r = ParseConfigText(row.text, "ds.json", OnlyLr(row.text), row.ranks);
    EXPECT_EQ(row.outcome, OutcomeOf(r)) << r.diagnostics.Render(Severity::kError);
    ExpectDetails(row, r);
    ExpectWhole(r);
    ExpectReason(row);
  }
  EXPECT_EQ(54u, numbers.size());
}

// The whole schema at its defaults: known to the last key, and nothing to say about it.
TEST(Conformance, DefaultsOfEverySectionPassInSilence) {
  const ParseResult r = ParseConfigFile(kData / "deepspeed_defaults.json", {}, /*world_size=*/1);
  EXPECT_EQ("", r.diagnostics.Render());
  const ParseResult none = ParseConfigText(
      R"({"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW"},"scheduler":{"type":"WarmupLR","params":{}}})",
      "", {}, /*world_size=*/1);
  // ... and they are the defaults here too.
  for (const Origin& origin : none.config.origins) {
    if (!origin.source.starts_with("default")) continue;
    const bool section = ValueOf(r.config, origin.key) == "no row";  // offload objects, which are there and off
    EXPECT_EQ(origin.value, ValueOf(r.config, origin.key + (section ? ".device" : ""))) << origin.key;
  }
}

// Parsing and planning is what `trireme plan` does before it prints. Time of the processor, which other programs do not
// lengthen: half a millisecond at most in a release build.
TEST(Corpus, ParsesAndPlansInMilliseconds) {
  Diagnostics of_model;
  ModelFlags flags;
  flags.model_name = "gpt-1.3b";
  const ModelSpec model = ResolveModel(flags, "", /*tp_size=*/1, of_model);
  double slowest_ms = 0;
  std::string slowest;
  for (const Row& row : Rows("corpus")) {
    const std::string text = TextOf(kData / "corpus" / row.name);
    const TrainFlags fill = Fill(text);
    const std::clock_t begin = std::clock();
    const ParseResult r = ParseConfigText(text, row.name, fill, row.ranks, model.hidden_size);
    if (!r.diagnostics.HasErrors()) {
      PlanInputs inputs;
      inputs.world_size = row.ranks;
      inputs.sequence_length = 1024;
      EXPECT_GT(MakePlan(r.config, model, inputs).units.size(), 2u) << row.name;
    }
    const double ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    if (ms > slowest_ms) slowest_ms = ms, slowest = row.name;
  }
  RecordProperty("slowest_ms", std::to_string(slowest_ms));
  RecordProperty("slowest", slowest);
  EXPECT_LT(slowest_ms, 20) << slowest;
}

}  // namespace
}  // namespace trireme
