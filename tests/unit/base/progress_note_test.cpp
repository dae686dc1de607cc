#include "engine/base/progress_note.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace trireme {
namespace {

std::filesystem::path NoteFile() {
  return std::filesystem::temp_directory_path() / ("trireme_progress_note_" + std::to_string(::getpid()));
}

TEST(ProgressNoteTest, OutlivesAKilledProcessWithTheNewestLineFirst) {
  const std::filesystem::path path = NoteFile();
  const pid_t child = ::fork();
  if (child == 0) {
    ProgressNote note(path);
    note.Set(0, "step 1: Forward");
    note.Set(3, "step 1: Reduce");
    note.Set(0, "step 2: Forward of a longer name");
    note.Set(0, "step 2: Backward");
    note.Set(5, std::string(1000, 'x'));
    note.Set(ProgressNote::kLines, "no such line");
    ::raise(SIGKILL);
    std::_Exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::vector<std::string> lines = ReadProgressNote(path);
  std::filesystem::remove(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], std::string(ProgressNote::kMostBytes, 'x'));
  EXPECT_EQ(lines[1], "step 2: Backward");
  EXPECT_EQ(lines[2], "step 1: Reduce");
}

TEST(ProgressNoteTest, NoFileIsNoNote) {
  EXPECT_TRUE(ReadProgressNote(NoteFile()).empty());
  ProgressNote note("/nowhere/at/all");
  note.Set(0, "kept for nobody");
}

}  // namespace
}  // namespace trireme
