#include "parsers/hostfile.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

struct Read {
  explicit Read(const std::string& text) { hosts = ParseHostfile(text, "hostfile", diagnostics); }
  Diagnostics diagnostics;
  std::vector<Host> hosts;
};

TEST(Hostfile, LinesInTheirOrder) {
  const Read r(
      "\xEF\xBB\xBF# cluster\n\nworker-2 slots=4\r\n  user@worker-1\tslots=08 # note\nw3 slots=2 max_slots=8\nfd77::2 "
      "slots=1");
  ASSERT_FALSE(r.diagnostics.HasErrors()) << r.diagnostics.Render();
  ASSERT_EQ(4u, r.hosts.size());
  EXPECT_EQ("worker-2", r.hosts[0].name);
  EXPECT_EQ(4, r.hosts[0].slots);
  EXPECT_EQ("user@worker-1", r.hosts[1].name);
  EXPECT_EQ(8, r.hosts[1].slots);
  EXPECT_EQ(2, r.hosts[2].slots);
  EXPECT_EQ("fd77::2", r.hosts[3].name);
}

TEST(Hostfile, EveryWrongLineIsReportedWithItsNumber) {
  const char* wrong[] = {"w slots = 4",
                         "w Slots=4",
                         "w",
                         "w:4",
                         "w slots=-1",
                         "two words slots=1",
                         "w slots=0",
                         "w slots=4x",
                         "w slots=",
                         "w-[0-3] slots=4",
                         "-o slots=1",
                         "w;rm slots=1",
                         "w slots=1 garbage",
                         "w slots=99999999999999999999"};
  for (const char* line : wrong) {
    const Read r(std::string("good slots=1\n") + line + "\n");
    ASSERT_EQ(1, r.diagnostics.num_errors()) << line;
    EXPECT_EQ("HST001", r.diagnostics.problems()[0].id) << line;
    EXPECT_EQ(2, r.diagnostics.problems()[0].position.line);
    EXPECT_EQ(1u, r.hosts.size());
  }
  const Read both("a\nb slots=x\nc slots=1\n");
  EXPECT_EQ(2, both.diagnostics.num_errors());
}

TEST(Hostfile, DuplicatesEmptyAndMissingFiles) {
  const Read twice("a slots=1\nb slots=1\na slots=2\n");
  ASSERT_EQ(1, twice.diagnostics.num_errors());
  EXPECT_EQ(
      "error HST002: hostfile:3: host a stands twice, first at line 1\n  fix: write one line with the sum of the slots",
      Render(twice.diagnostics.problems()[0]));
  const Read upper("a slots=1\nA slots=1\n");
  EXPECT_FALSE(upper.diagnostics.HasErrors());
  EXPECT_EQ("HST003", Read("# nothing\n\n").diagnostics.problems()[0].id);
  Diagnostics diagnostics;
  EXPECT_TRUE(ReadHostfile("/no/such/hostfile", diagnostics).empty());
  EXPECT_EQ("HST004", diagnostics.problems()[0].id);
}

}  // namespace
}  // namespace trireme
