#include "parsers/batch_triangle.h"

#include <gtest/gtest.h>

#include "config_testing.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::ErrorKeys;
using testing::Errors;
using testing::Parse;

std::string Triple(const BatchConfig& b) {
  return std::to_string(b.train_batch_size) + "/" + std::to_string(b.train_micro_batch_size_per_gpu) + "/" +
         std::to_string(b.gradient_accumulation_steps);
}

// "32/8/1", or the id and fix of the problem. 0 stands for absent.
std::string Resolve(int64_t t, int64_t m, int64_t g, int64_t world, int64_t tp = 1, int64_t pp = 1) {
  const auto given = [](int64_t v) { return v == 0 ? std::nullopt : std::optional<int64_t>(v); };
  const BatchResult r = ResolveBatch({given(t), given(m), given(g), "", "", "", world, tp, pp});
  return r.batch ? Triple(*r.batch) : r.id + ": " + r.fix;
}

// The table of DeepSpeed's results for 4 data-parallel ranks.
TEST(BatchTriangle, EveryCaseOfFourRanks) {
  EXPECT_EQ("32/8/1", Resolve(32, 0, 0, 4));
  EXPECT_EQ("CFG020: set train_batch_size to 28 or 32", Resolve(30, 0, 0, 4));
  EXPECT_EQ("CFG022: set train_batch_size to 4, the smallest that fits", Resolve(3, 0, 0, 4));
  EXPECT_EQ("8/2/1", Resolve(0, 2, 0, 4));
  EXPECT_EQ("32/2/4", Resolve(32, 2, 0, 4));
  EXPECT_EQ("CFG020: set train_batch_size to 32 or 40", Resolve(33, 2, 0, 4));
  EXPECT_EQ("CFG020: set train_batch_size to 24 or 36, or train_micro_batch_size_per_gpu to 2", Resolve(32, 3, 0, 4));
  EXPECT_EQ("CFG022: set train_batch_size to 64, the smallest that fits, or train_micro_batch_size_per_gpu to 8",
            Resolve(32, 16, 0, 4));
  EXPECT_EQ("32/4/2", Resolve(32, 0, 2, 4));
  EXPECT_EQ("CFG020: set train_batch_size to 24 or 36, or gradient_accumulation_steps to 2", Resolve(32, 0, 3, 4));
  EXPECT_EQ("CFG022: set train_batch_size to 4, the smallest that fits", Resolve(2, 0, 1, 4));
  EXPECT_EQ("32/2/4", Resolve(0, 2, 4, 4));
  EXPECT_EQ(
      "CFG020: set gradient_accumulation_steps to 4, or train_micro_batch_size_per_gpu to 4, or train_batch_size "
      "to 16, or run 8 ranks",
      Resolve(32, 2, 2, 4));
  EXPECT_EQ(0u, Resolve(0, 0, 2, 4).find("CFG021"));
  EXPECT_EQ(0u, Resolve(0, 0, 0, 4).find("CFG021"));
  EXPECT_EQ("32/2/4", Resolve(32, 2, 4, 4));
}

// What is derived always multiplies out, and each fix that is offered is accepted.
TEST(BatchTriangle, DerivedNumbersMultiplyOut) {
  for (int64_t world = 1; world <= 4; ++world) {
    for (int64_t t = 0; t <= 24; ++t) {
      for (int64_t m = 0; m <= 4; ++m) {
        for (int64_t g = 0; g <= 4; ++g) {
          const auto given = [](int64_t v) { return v == 0 ? std::nullopt : std::optional<int64_t>(v); };
          const BatchResult r = ResolveBatch({given(t), given(m), given(g), "", "", "", world, 1, 1});
          if (!r.batch) {
            const bool fits = t == 0 ? m > 0
                                     : t % (std::max<int64_t>(m, 1) * std::max<int64_t>(g, 1) * world) == 0 &&
                                           !(m && g && t != m * g * world);
            EXPECT_FALSE(fits) << t << " " << m << " " << g << " " << world;
            continue;
          }
          EXPECT_EQ(r.batch->train_batch_size,
                    r.batch->train_micro_batch_size_per_gpu * r.batch->gradient_accumulation_steps * world);
          if (t) {
            EXPECT_EQ(t, r.batch->train_batch_size);
          }
          if (m) {
            EXPECT_EQ(m, r.batch->train_micro_batch_size_per_gpu);
          }
          if (g) {
            EXPECT_EQ(g, r.batch->gradient_accumulation_steps);
          }
        }
      }
    }
  }
}

TEST(BatchTriangle, DataParallelRanksCountNotAllRanks) {
  EXPECT_EQ("16/2/4", Resolve(0, 2, 4, 8, 4, 1));
  const ParseResult r = Parse(R"({"train_batch_size": 512, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8, "tensor_parallel": {"tp_size": 2}, "pipeline_parallel": {"pp_size": 2}})",
                              32);
  ASSERT_EQ(1u, Errors(r).size()) << r.diagnostics.Render();
  EXPECT_TRUE(Contains(Errors(r)[0].what, "= 256")) << Errors(r)[0].what;
  EXPECT_TRUE(Contains(Errors(r)[0].what, "(dp = world 32 / tp 2 / pp 2)"));
  EXPECT_TRUE(Contains(Errors(r)[0].fix, "gradient_accumulation_steps to 16"));
  EXPECT_TRUE(Contains(Errors(r)[0].fix, "train_batch_size to 256"));
}

TEST(BatchTriangle, CFG_01_NamesEveryNumberItsSourceAndTheNearestSettings) {
  TrainFlags flags = testing::WithLr();
  flags.gradient_accumulation_steps = 1;
  const ParseResult r = Parse("{\"train_batch_size\":8,\n\"train_micro_batch_size_per_gpu\":2}", 2, flags);
  ASSERT_EQ(1u, Errors(r).size());
  EXPECT_EQ(
      "error CFG020: ds.json:1:2: train_batch_size: 8 (line 1) != 2 (micro, line 2) x 1 (accumulation, "
      "--gradient-accumulation-steps) x 2 (dp = ranks) = 4\n"
      "  fix: set gradient_accumulation_steps to 2, or train_micro_batch_size_per_gpu to 4, or train_batch_size to "
      "4, or run 4 ranks",
      Render(Errors(r)[0]));
}

TEST(BatchTriangle, CFG_03_NeverDerivesZeroAndNeverRounds) {
  const ParseResult small = Parse(R"({"train_batch_size":4,"train_micro_batch_size_per_gpu":4})", 8);
  ASSERT_EQ(1u, Errors(small).size());
  EXPECT_TRUE(Contains(Errors(small)[0].fix, "32, the smallest that fits"));
  const ParseResult uneven = Parse(R"({"train_batch_size":20})", 8);
  ASSERT_EQ(1u, Errors(uneven).size());
  EXPECT_EQ("set train_batch_size to 16 or 24", Errors(uneven)[0].fix);
}

TEST(BatchTriangle, CFG_04_WhichSubsetsAreLegal) {
  EXPECT_EQ(std::vector<std::string>{"CFG021 train_batch_size"},
            ErrorKeys(Parse(R"({"gradient_accumulation_steps":4})", 2)));
  const ParseResult micro = Parse(R"({"train_micro_batch_size_per_gpu":2})", 2);
  EXPECT_EQ("4/2/1", Triple(micro.config.batch));
  EXPECT_TRUE(Contains(testing::SourceOf(micro, "train_batch_size"), "derived"));
  EXPECT_EQ("ds.json:1", testing::SourceOf(micro, "train_micro_batch_size_per_gpu"));
  EXPECT_EQ("8/4/1", Triple(Parse(R"({"train_batch_size":8})", 2).config.batch));
  EXPECT_EQ("8/4/1", Triple(Parse(R"({"train_batch_size":8,"train_micro_batch_size_per_gpu":null})", 2).config.batch));
}

TEST(BatchTriangle, NonPositiveAndHugeNumbersAreOutOfRange) {
  EXPECT_EQ(
      std::vector<std::string>{"CFG006 gradient_accumulation_steps"},
      ErrorKeys(Parse(R"({"train_batch_size":8,"train_micro_batch_size_per_gpu":2,"gradient_accumulation_steps":0})")));
  EXPECT_EQ(std::vector<std::string>{"CFG006 train_batch_size"}, ErrorKeys(Parse(R"({"train_batch_size":-4})")));
  EXPECT_EQ(std::vector<std::string>{"CFG005 train_batch_size"}, ErrorKeys(Parse(R"({"train_batch_size":"8"})")));
  EXPECT_EQ(
      std::vector<std::string>{"CFG020 train_micro_batch_size_per_gpu"},
      ErrorKeys(Parse(R"({"train_micro_batch_size_per_gpu":1000000000,"gradient_accumulation_steps":1000000000})")));
}

TEST(BatchTriangle, AutoTakesTheFlagOrIsDerived) {
  const char* text =
      R"({"train_batch_size":"auto","train_micro_batch_size_per_gpu":"auto","gradient_accumulation_steps":"auto"})";
  TrainFlags flags = testing::WithLr();
  flags.micro_batch_size = 2;
  flags.gradient_accumulation_steps = 4;
  EXPECT_EQ("64/2/4", Triple(Parse(text, 8, flags).config.batch));
  EXPECT_EQ(std::vector<std::string>{"CFG021 train_batch_size"}, ErrorKeys(Parse(text, 8)));
}

}  // namespace
}  // namespace trireme
