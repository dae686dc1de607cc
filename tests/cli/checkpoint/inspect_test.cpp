#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::cli {
namespace {

using checkpoint::testing::Save;
using checkpoint::testing::TemporaryRoot;

std::string Output(int code, const std::vector<std::string>& words) {
  ::testing::internal::CaptureStdout();
  int found = -1;
  std::string id;
  try {
    found = RunInspect(words);
  } catch (const Error& error) {
    found = ExitCode(error.code());
    id = error.id();
  }
  std::fflush(stdout);
  const std::string text = ::testing::internal::GetCapturedStdout() + id;
  EXPECT_EQ(code, found) << text;
  return text;
}

TEST(Inspect, TellsWhatIsInside) {
  const TemporaryRoot root;
  Save({.root = root.path(), .world = 3});
  const std::string text = Output(0, {root.path(), "--tensors", "--config"});
  for (const char* part : {"format      trireme", "tag         global_step7, step 7",
                           "3 ranks (dp 3 tp 1 pp 1), ZeRO stage 2", "tensors     7", "master fp32", "231 elements",
                           "transformer.wte.weight", "[13, 6]", "exp_avg_sq fp64", "\"consumed_samples\":56"}) {
    EXPECT_NE(std::string::npos, text.find(part)) << part << "\n" << text;
  }
}

TEST(Inspect, VerifyNamesTheDamagedTensor) {
  const TemporaryRoot root;
  const auto folder = Save({.root = root.path(), .world = 1});
  EXPECT_NE(std::string::npos, Output(0, {folder, "--verify"}).find("as written"));
  EXPECT_NE(std::string::npos, Output(0, {root.path(), "--verify"}).find("as written"));
  {
    const auto bytes =
        checkpoint::testing::BytesOf({"transformer.wte.weight", {13, 6}}, {"exp_avg", DType::kFloat32}, 1, false);
    std::fstream file(folder / "data" / "rank_00000.h5", std::ios::in | std::ios::out | std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t place = text.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    ASSERT_NE(std::string::npos, place);
    file.seekp(static_cast<std::streamoff>(place) + 5);
    file.put(static_cast<char>(text[place + 5] ^ 0x10));
  }
  const std::string text = Output(1, {root.path(), "--tag", "global_step7", "--verify"});
  for (const char* part :
       {"CKP005", "rank_00000.h5", "damaged: transformer.wte.weight (exp_avg)", "verify: 1 problems"}) {
    EXPECT_NE(std::string::npos, text.find(part)) << part << "\n" << text;
  }
}

TEST(Inspect, Usage) {
  EXPECT_NE(std::string::npos, Output(0, {"--help"}).find("usage: trireme inspect"));
  EXPECT_EQ("CKP023", Output(2, {}));
  EXPECT_EQ("CKP023", Output(2, {"--nothing"}));
  EXPECT_EQ("CKP023", Output(2, {"a", "b"}));
  EXPECT_EQ("CKP001", Output(65, {"/nonexistent"}));
  EXPECT_EQ("CKP002", Output(65, {"/nonexistent", "--tag", "x"}));
}

}  // namespace
}  // namespace trireme::cli
