#include "launcher/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace trireme::launcher {
namespace {

using Lines = std::vector<std::string>;

TEST(Tail, KeepsTheLastLines) {
  Tail tail(2);
  tail.Add("one\ntw");
  EXPECT_EQ(tail.Lines(), (Lines{"one", "tw"}));
  tail.Add("o\nthree\n");
  EXPECT_EQ(tail.Lines(), (Lines{"two", "three"}));
  tail.Add("no end");
  EXPECT_EQ(tail.Lines(), (Lines{"three", "no end"}));
}

TEST(Tail, ProgressLinesCountOnce) {
  Tail tail(5);
  tail.Add("10 %\r20 %\r30 %\nwindows\r\n");
  EXPECT_EQ(tail.Lines(), (Lines{"30 %", "windows"}));
}

TEST(Tail, LongLinesAreCut) {
  Tail tail(1);
  tail.Add(std::string(1 << 20, 'x'));
  EXPECT_EQ(tail.Lines()[0].size(), 4096U);
}

TEST(LinePrefixer, WholeLinesOnly) {
  LinePrefixer prefixer("[3] ");
  EXPECT_EQ(prefixer.Add("on"), "");
  EXPECT_EQ(prefixer.Add("e\ntwo\nthr"), "[3] one\n[3] two\n");
  EXPECT_EQ(prefixer.Add("\r"), "[3] thr\r");
  EXPECT_EQ(prefixer.Finish(), "");
  EXPECT_EQ(prefixer.Add("end"), "");
  EXPECT_EQ(prefixer.Finish(), "[3] end\n");
  EXPECT_EQ(prefixer.Add(std::string(64 * 1024, 'x')).size(), 64U * 1024 + 5);
}

TEST(Console, WritesWhatFitsWithoutBlocking) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  Console console(ends[1]);
  const std::string text(300000, 'x');  // more than the pipe holds
  console.Add(text);
  console.Flush();
  EXPECT_TRUE(console.pending());
  size_t got = 0;
  std::array<char, 65536> bytes{};
  while (got < text.size()) {
    const ssize_t count = read(ends[0], bytes.data(), bytes.size());
    ASSERT_GT(count, 0);
    got += static_cast<size_t>(count);
    console.Flush();
  }
  EXPECT_FALSE(console.pending());
  EXPECT_EQ(console.dropped_bytes(), 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace trireme::launcher
