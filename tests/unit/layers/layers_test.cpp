// The tree against the picture of ARCHITECTURE.md, and the check against trees that break it.
#include "tests/unit/layers/layers.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace trireme::layers {
namespace {

std::string Inc(const std::string& path) { return "#include \"" + path + "\"\n"; }

std::string Text(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += v.file + ":" + std::to_string(v.line) + ": " + v.what + "\n";
  return text;
}

TEST(Layers, TheTreeHasOnlyTheArrowsOfThePicture) {
  const Tree tree = ReadTree(TRIREME_SOURCE_DIR);
  ASSERT_GT(tree.size(), 20U);
  ASSERT_TRUE(tree.count("engine/base/error.h"));
  std::vector<std::string> light;
  std::istringstream names(TRIREME_LIGHT_SOURCES);
  for (std::string name; std::getline(names, name, '|');) light.push_back(name);
  ASSERT_TRUE(tree.count("engine/cli/" + light.at(0)));
  EXPECT_EQ("", Text(CheckLayers(tree, light)));
}

TEST(Layers, AnArrowUpIsFound) {
  Tree tree = {{"engine/base/error.h", ""},
               {"engine/plan/plan.h", Inc("engine/base/error.h")},
               {"parsers/config.cpp", Inc("engine/base/error.h") + Inc("engine/plan/plan.h")}};
  EXPECT_EQ("parsers/config.cpp:2: no arrow parsers -> engine/plan for engine/plan/plan.h\n", Text(CheckLayers(tree)));
  tree["parsers/config.cpp"] = Inc("engine/base/error.h");
  EXPECT_EQ("", Text(CheckLayers(tree)));
}

TEST(Layers, AnArrowSidewaysIsFound) {
  const Tree tree = {{"engine/zero/flat_buffer.h", ""}, {"engine/model/gpt.cpp", Inc("engine/zero/flat_buffer.h")}};
  EXPECT_EQ("engine/model/gpt.cpp:1: no arrow engine/model -> engine/zero for engine/zero/flat_buffer.h\n",
            Text(CheckLayers(tree)));
}

TEST(Layers, LibTorchBelowTheLineIsFoundAlsoInTests) {
  for (const char* header : {"ATen/ATen.h", "torch/torch.h", "c10/core/ScalarType.h"}) {
    const std::string line = std::string("  #  include <") + header + "> // why\n";
    EXPECT_EQ(1U, CheckLayers({{"engine/schedule/zero.cpp", line}}).size()) << header;
    EXPECT_EQ(1U, CheckLayers({{"checkpoint/hdf5/reader.cpp", line}}).size()) << header;
    EXPECT_EQ(1U, CheckLayers({{"tests/unit/schedule/zero_test.cpp", line}}).size()) << header;
    EXPECT_EQ(0U, CheckLayers({{"engine/zero/update.cpp", line}}).size()) << header;
    EXPECT_EQ(0U, CheckLayers({{"tests/unit/zero/update_test.cpp", line}}).size()) << header;
  }
}

TEST(Layers, TheWholeOfTorchInAHeaderIsFound) {
  EXPECT_EQ(1U, CheckLayers({{"engine/model/gpt.h", "#include <torch/torch.h>\n"}}).size());
  EXPECT_EQ(0U, CheckLayers({{"engine/model/gpt.cpp", "#include <torch/torch.h>\n"}}).size());
}

TEST(Layers, AnIncludeThatIsNotFromTheRootIsFound) {
  const Tree tree = {{"engine/plan/plan.h", ""}, {"engine/plan/plan.cpp", Inc("plan.h")}};
  EXPECT_EQ("engine/plan/plan.cpp:1: \"plan.h\" is no file seen from the root of the sources\n",
            Text(CheckLayers(tree)));
  EXPECT_EQ("",
            Text(CheckLayers({{"tests/unit/plan/tools.h", ""}, {"tests/unit/plan/plan_test.cpp", Inc("tools.h")}})));
}

TEST(Layers, ARoomThatThePictureLacksIsFound) {
  const Tree tree = {{"engine/base/error.h", ""}, {"engine/extra/x.cpp", Inc("engine/base/error.h")}};
  EXPECT_EQ("engine/extra/x.cpp:1: lies in no room of the picture\n", Text(CheckLayers(tree)));
}

// engine/cli is two targets. What `trireme` compiles or reaches must see nothing above the line; the rest is
// trireme-engine's.
TEST(Layers, TheLightProgramSeesNothingAboveTheLine) {
  Tree tree = {
      {"engine/trainer/trainer.h", ""},
      {"engine/cli/common.h", ""},
      {"engine/cli/main.cpp", Inc("engine/cli/common.h")},
      {"engine/cli/plan.cpp", ""},
      {"engine/cli/engine_main.cpp", Inc("engine/cli/common.h")},
      {"engine/cli/train.cpp", Inc("engine/trainer/trainer.h")},
  };
  EXPECT_EQ("", Text(CheckLayers(tree, {"main.cpp", "plan.cpp"})));
  tree["engine/cli/plan.cpp"] = Inc("engine/trainer/trainer.h");
  EXPECT_EQ("engine/cli/plan.cpp:1: no arrow engine/cli:trireme -> engine/trainer for engine/trainer/trainer.h\n",
            Text(CheckLayers(tree, {"main.cpp", "plan.cpp"})));
  tree["engine/cli/plan.cpp"] = "";
  tree["engine/cli/common.h"] = "#include <ATen/ATen.h>\n";
  EXPECT_EQ("engine/cli/common.h:1: below the LibTorch line, includes ATen/ATen.h\n",
            Text(CheckLayers(tree, {"main.cpp", "plan.cpp"})));
}

TEST(Layers, ReadsIncludeLinesOnly) {
  const auto includes =
      IncludesOf("// #include \"a.h\"\n#include <vector>\n\n #  include \"b/c.h\"  // d\n#define X\n");
  ASSERT_EQ(2U, includes.size());
  EXPECT_FALSE(includes[0].quoted);
  EXPECT_EQ("b/c.h", includes[1].path);
  EXPECT_EQ(4, includes[1].line);
  EXPECT_TRUE(includes[1].quoted);
}

}  // namespace
}  // namespace trireme::layers
