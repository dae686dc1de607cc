// `trireme doctor` on the machine that runs the tests.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/cli/launcher/command.h"

namespace trireme::testing {
namespace {

TEST(DoctorCommand, ReportsThisMachineAsJson) {
  const TempFolder folder;
  const Outcome outcome = RunTrireme({"doctor", "--json", "--nvme_path", folder.path().string()});
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(outcome.code, report["problems"] == 0 ? 0 : 1) << outcome.out;
  EXPECT_EQ(report["ok"], report["problems"] == 0);
  std::set<std::string> topics;
  for (const auto& finding : report["findings"]) {
    topics.insert(finding["topic"].get<std::string>());
    EXPECT_NE(finding["what"], "");
    if (finding["status"] != "ok") {
      EXPECT_NE(finding["fix"], "") << finding;
    }
  }
  for (const char* topic : {"cpu", "memory", "shared memory", "limits", "clock", "network", "disk", "engine", "cuda"})
    EXPECT_TRUE(topics.count(topic)) << topic << " is not in\n" << outcome.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DoctorCommand, AProblemIsExitCodeOne) {
  const Outcome outcome = RunTrireme({"doctor", "--nvme_path", "/nowhere/at/all"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("problem  disk"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("fix: make the folder"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace trireme::testing
