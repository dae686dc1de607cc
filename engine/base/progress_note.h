// What a process is at, in a file that outlives it: whoever finds it killed can say what it was doing.
//   ProgressNote note(path);  note.Set(0, "step 57: Gather transformer.h.2");
//   for (const std::string& line : ReadProgressNote(path)) ...
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// A fixed number of lines in a memory map: a store costs no system call, and what was stored is there after SIGKILL.
class ProgressNote {
 public:
  static constexpr size_t kLines = 8, kMostBytes = 232;

  // Makes the file. Where that fails the note is kept for nobody: it is no reason to end a run.
  explicit ProgressNote(const std::filesystem::path& path);
  ~ProgressNote();
  ProgressNote(const ProgressNote&) = delete;
  ProgressNote& operator=(const ProgressNote&) = delete;

  // Any thread; a line has one writer at a time. Longer texts are cut.
  void Set(size_t line, std::string_view text);

  struct Line {
    std::atomic<uint64_t> turn = 0;  // of all Sets; 0: none
    std::atomic<uint64_t> size = 0;
    std::array<char, kMostBytes> text = {};
  };

 private:
  Line* lines_ = nullptr;
  std::atomic<uint64_t> turn_ = 0;
};

// The lines that were set, the newest first; none, if there is no such file.
std::vector<std::string> ReadProgressNote(const std::filesystem::path& path);

}  // namespace trireme
