// The public DeepSpeed configs of corpus/ (their sources: corpus/INDEX.md): each one parses, or says why not and what
// to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "parsers/cli.h"
#include "parsers/config.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(TRIREME_TEST_DATA) / "corpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// What a program around the config supplies for "auto"; hidden size 4096.
TrainFlags Fill() {
  TrainFlags f;
  f.lr = 1e-4;
  f.lr_warmup_iters = 100;
  f.train_iters = 1000;
  return f;
}

TEST(Corpus, HoldsItsFiles) { EXPECT_EQ(92u, Files().size()); }

TEST(Corpus, EveryFileParsesOrSaysWhatToDo) {
  for (const fs::path& file : Files()) {
    for (const int64_t world : {1, 8}) {
      const ParseResult r = ParseConfigFile(file, Fill(), world, 4096);
      for (const Problem& problem : r.diagnostics.problems()) {
        EXPECT_TRUE(problem.severity == Severity::kNotice || !problem.fix.empty()) << Render(problem);
        EXPECT_FALSE(problem.what.empty()) << Render(problem);
        EXPECT_EQ(file.string(), problem.position.file.empty() ? file.string() : problem.position.file);
      }
      if (r.diagnostics.HasErrors()) continue;
      const BatchConfig& b = r.config.batch;
      EXPECT_EQ(b.train_batch_size, b.train_micro_batch_size_per_gpu * b.gradient_accumulation_steps * r.config.dp_size)
          << file;
      for (const Origin& origin : r.config.origins) EXPECT_NE("auto", origin.value) << file << " " << origin.key;
    }
  }
}

// Triples that DeepSpeed 0.19.6 resolves for 8 ranks, for files that need nothing which is not supported.
TEST(Corpus, TriplesOfDeepSpeed) {
  struct Want {
    const char* file;
    int64_t batch, micro, accumulation;
  };
  const Want wants[] = {
      {"DeepSpeed__examples__sdma_allgather__ds_config_zero3.json", 8, 1, 1},
      {"DeepSpeed__tests__model__BingBertSquad__deepspeed_bsz24_fp32_config.json", 24, 3, 1},
      {"DeepSpeedExamples__training__imagenet__config__ds_fp16_config.json", 256, 32, 1},
      {"gpt-neox__configs__125M-json.yml.json", 32, 4, 1},
  };
  for (const Want& want : wants) {
    const ParseResult r = ParseConfigFile(fs::path(TRIREME_TEST_DATA) / "corpus" / want.file, {}, 8, 4096);
    EXPECT_FALSE(r.diagnostics.HasErrors()) << r.diagnostics.Render();
    EXPECT_EQ(want.batch, r.config.batch.train_batch_size) << want.file;
    EXPECT_EQ(want.micro, r.config.batch.train_micro_batch_size_per_gpu) << want.file;
    EXPECT_EQ(want.accumulation, r.config.batch.gradient_accumulation_steps) << want.file;
  }
}

}  // namespace
}  // namespace trireme
