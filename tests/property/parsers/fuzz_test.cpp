// Mutated configs: no input may crash the parser, hang it, or leave a problem without a cure. Run longer by hand:
//   build/tests/test_parsers_fuzz --seconds=30 --seed=7
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/cli.h"
#include "parsers/config.h"
#include "parsers/hostfile.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

double seconds = 1.5;
uint64_t seed = 0;

std::vector<std::string> Corpus() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(TRIREME_SOURCE_DIR) / "tests/compat/parsers/corpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> texts;
  for (const fs::path& file : files) {
    std::ifstream in(file);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  // Most of the corpus needs what is not supported; these are accepted as they stand.
  texts.emplace_back(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})");
  texts.emplace_back(
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
      "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1e-3}}, "gradient_clipping": 1.0})");
  texts.emplace_back(R"({"elasticity": {"enabled": true, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6],
      "min_gpus": 1, "max_gpus": 100, "num_gpus_per_node": 8, "model_parallel_size": 2, "version": 0.2}})");
  texts.emplace_back(R"({"train_batch_size": 8, "checkpoint": {"tag_validation": "Warn", "writer": {"type": "fast"}},
      "compile": {"passes": ["z3"], "disable": true}, "timers": {"throughput": {"enabled": true}}, "num-layers": 2,
      "zero_optimization": {"stage": 3, "leaf_module": {"classes": []}, "max_live_parameters": 5}})");
  return texts;
}

constexpr std::string_view kPieces[] = {"\"auto\"",
                                        "null",
                                        "true",
                                        "-1",
                                        "1e400",
                                        "5e8",
                                        "0.5",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "'",
                                        "'''",
                                        "#",
                                        "//",
                                        "/*",
                                        "\\u",
                                        "\\ud800",
                                        "\n",
                                        "\xFF",
                                        "1e308",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "99999999999999999999",
                                        "\"stage\":",
                                        "\"enabled\":"};

class Mutator {
 public:
  explicit Mutator(uint64_t start) : random_(start) {}
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  std::string Mutate(std::string text, const std::vector<std::string>& others) {
    for (size_t n = 1 + Below(6); n > 0; --n) {
      const size_t at = Below(text.size() + 1), length = std::min(text.size() - at, Below(24));
      switch (Below(6)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, kPieces[Below(std::size(kPieces))]);
          break;
        case 2:
          text.replace(at, length, kPieces[Below(std::size(kPieces))]);
          break;
        case 3:
          if (at < text.size()) text[at] = static_cast<char>(Below(256));
          break;
        case 4:
          text.insert(at, text.substr(Below(text.size() + 1), Below(60)));
          break;
        default: {
          const std::string& other = others[Below(others.size())];
          text.insert(at, other.substr(Below(other.size() + 1), Below(80)));
        }
      }
    }
    return text;
  }

 private:
  std::mt19937_64 random_;
};

TEST(Fuzz, NoInputCrashesTheParsers) {
  const std::vector<std::string> corpus = Corpus();
  ASSERT_FALSE(corpus.empty());
  std::cout << "seed " << seed << "\n";
  Mutator mutator(seed);
  TrainFlags flags;
  flags.for_plan = true;  // open learning rates and lengths are no errors
  // Every other input grows out of one of the last two, which are valid.
  const auto pick = [&]() -> const std::string& {
    return mutator.Below(2) == 0 ? corpus[corpus.size() - 1 - mutator.Below(2)] : corpus[mutator.Below(corpus.size())];
  };
  int64_t inputs = 0, accepted = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const std::string text = mutator.Mutate(pick(), corpus);
    const ParseResult r = ParseConfigText(text, "ds.json", flags, static_cast<int64_t>(1 + mutator.Below(9)), 4096);
    for (const Problem& problem : r.diagnostics.problems()) {
      ASSERT_TRUE(problem.severity == Severity::kNotice || !problem.fix.empty()) << Render(problem) << "\n" << text;
    }
    if (!r.diagnostics.HasErrors()) {
      ++accepted;
      const BatchConfig& b = r.config.batch;
      ASSERT_GE(b.train_micro_batch_size_per_gpu, 1) << text;
      ASSERT_EQ(b.train_batch_size, b.train_micro_batch_size_per_gpu * b.gradient_accumulation_steps * r.config.dp_size)
          << text;
    }
    Diagnostics hosts;
    ParseHostfile(text.substr(0, 200), "hostfile", hosts);
    ++inputs;
  }
  std::cout << inputs << " inputs, " << accepted << " accepted\n";
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  trireme::seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--seconds=")) trireme::seconds = std::atof(argv[i] + 10);
    if (arg.starts_with("--seed=")) trireme::seed = std::strtoull(argv[i] + 7, nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
