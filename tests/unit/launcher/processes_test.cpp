#include "launcher/processes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

// Out of folders that look like the kernel's: the own group's counter in both versions, else the machine's.
TEST(Processes, OomKillsAreThoseOfTheOwnGroup) {
  const fs::path root = trireme::testing::NewTempFolder("oom_kills");
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  EXPECT_EQ(OomKills(root), 0);
  write("proc/vmstat", "nr_free_pages 5\noom_kill 40\n");
  EXPECT_EQ(OomKills(root), 40);
  write("proc/self/cgroup", "4:memory:/docker/1\n");
  write("sys/fs/cgroup/memory/docker/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(OomKills(root), 3);
  write("proc/self/cgroup", "0::/jobs/seven\n");
  write("sys/fs/cgroup/jobs/seven/memory.events", "low 0\noom 9\noom_kill 2\n");
  EXPECT_EQ(OomKills(root), 2);
  fs::remove_all(root);
}

}  // namespace
}  // namespace trireme::launcher
