// Which layers are recomputed, and how: keys of three sections, and flags.
#include <gtest/gtest.h>

#include <string>

#include "parsers/cli.h"
#include "tests/unit/parsers/config_testing.h"

namespace trireme {
namespace {

using testing::ErrorKeys;
using Keys = std::vector<std::string>;
using testing::ParseKeys;

using Runs = std::vector<RecomputeRun>;

RecomputeConfig Read(const std::string& keys, const TrainFlags& flags = testing::WithLr()) {
  return ParseKeys(keys, flags).config.recompute;
}

TEST(Activations, PoliciesOfLayers) {
  EXPECT_EQ(Runs{}, Read(R"("steps_per_print":1)").runs);
  EXPECT_EQ((Runs{{Recompute::kCheap, 0}}), Read(R"("trireme":{"recompute":"cheap"})").runs);
  EXPECT_EQ((Runs{{Recompute::kFull, 8}, {Recompute::kCheap, 0}}),
            Read(R"("trireme":{"recompute":"full:8,cheap"})").runs);
  EXPECT_EQ((Runs{{Recompute::kNone, 1}, {Recompute::kFull, 2}}),
            Read(R"("trireme":{"recompute":["keep","full","full"]})").runs);
  for (const char* wrong : {R"("some")", R"("full:0")", R"("full,cheap")", R"("full:2,")", R"(["full", 1])", "3"}) {
    EXPECT_EQ(Keys{"CFG012 trireme.recompute"},
              ErrorKeys(ParseKeys(std::string(R"("trireme":{"recompute":)") + wrong + "}")))
        << wrong;
  }
}

TEST(Activations, FlagsOfMegatron) {
  TrainFlags flags = testing::WithLr();
  flags.recompute_granularity = "selective";
  EXPECT_EQ((Runs{{Recompute::kCheap, 0}}), Read(R"("steps_per_print":1)", flags).runs);
  flags.recompute_granularity = "full";
  EXPECT_EQ((Runs{{Recompute::kFull, 0}}), Read(R"("steps_per_print":1)", flags).runs);
  flags.recompute_method = "uniform";
  flags.recompute_num_layers = 3;
  EXPECT_EQ(3, Read(R"("steps_per_print":1)", flags).layers_per_checkpoint);
  EXPECT_EQ(Keys{"CFG008 pipeline.activation_checkpoint_interval"},
            ErrorKeys(ParseKeys(R"("pipeline":{"activation_checkpoint_interval":2})", flags)));
  EXPECT_EQ(Keys{"CFG008 trireme.recompute"}, ErrorKeys(ParseKeys(R"("trireme":{"recompute":"cheap"})", flags)));
  flags.recompute_method = "block";
  const RecomputeConfig block = Read(R"("steps_per_print":1)", flags);
  EXPECT_EQ((Runs{{Recompute::kFull, 3}}), block.runs);
  EXPECT_TRUE(block.of_each_stage);
  flags.distribute_saved_activations = true;
  EXPECT_TRUE(Read(R"("steps_per_print":1)", flags).partition_activations);
}

// The section says how; the interval of a pipeline says whether.
TEST(Activations, SectionOfDeepSpeed) {
  const std::string section =
      R"("activation_checkpointing":{"partition_activations":true,"number_checkpoints":4,"profile":true})";
  RecomputeConfig c = Read(section);
  EXPECT_EQ(Runs{}, c.runs);
  EXPECT_TRUE(c.partition_activations);
  EXPECT_EQ(4, c.number_checkpoints);
  c = Read(R"("pipeline":{"activation_checkpoint_interval":2})");
  EXPECT_EQ((Runs{{Recompute::kFull, 0}}), c.runs);
  EXPECT_EQ(2, c.layers_per_checkpoint);
  EXPECT_EQ(Runs{}, Read(R"("pipeline":{"activation_checkpoint_interval":0})").runs);
  EXPECT_EQ(Keys{"CFG006 activation_checkpointing.number_checkpoints"},
            ErrorKeys(ParseKeys(R"("activation_checkpointing":{"number_checkpoints":0})")));
  std::string notices;
  for (const Problem& p : testing::Of(ParseKeys(section + R"(,"trireme":{"recompute":"full"})"), Severity::kNotice)) {
    notices += p.what + "\n";
  }
  EXPECT_NE(notices.find("there is one tensor-parallel rank"), std::string::npos) << notices;
  EXPECT_NE(notices.find("4 runs of layers"), std::string::npos) << notices;
}

}  // namespace
}  // namespace trireme
