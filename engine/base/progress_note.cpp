#include "engine/base/progress_note.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <new>

namespace trireme {
namespace {

constexpr size_t kFileBytes = ProgressNote::kLines * sizeof(ProgressNote::Line);

}  // namespace

ProgressNote::ProgressNote(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (::ftruncate(fd, static_cast<off_t>(kFileBytes)) == 0) {
    void* const memory = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) {
      lines_ = static_cast<Line*>(memory);
      for (size_t i = 0; i < kLines; ++i) new (lines_ + i) Line;
    }
  }
  ::close(fd);
}

ProgressNote::~ProgressNote() {
  if (lines_ != nullptr) ::munmap(lines_, kFileBytes);
}

void ProgressNote::Set(size_t line, std::string_view text) {
  if (lines_ == nullptr || line >= kLines) return;
  Line& to = lines_[line];
  to.size = 0;  // a process that is killed here leaves an empty line, not a mixed one
  text = text.substr(0, kMostBytes);
  std::memcpy(to.text.data(), text.data(), text.size());
  to.turn = ++turn_;
  to.size = text.size();
}

std::vector<std::string> ReadProgressNote(const std::filesystem::path& path) {
  struct Stored {
    uint64_t turn, size;
    std::array<char, ProgressNote::kMostBytes> text;
  };
  static_assert(sizeof(Stored) == sizeof(ProgressNote::Line));
  std::array<Stored, ProgressNote::kLines> stored{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(stored.data()), static_cast<std::streamsize>(kFileBytes))) return {};
  std::ranges::sort(stored, std::greater(), &Stored::turn);
  std::vector<std::string> lines;
  for (const Stored& line : stored) {
    if (line.turn == 0 || line.size == 0) continue;
    lines.emplace_back(line.text.data(), std::min<size_t>(line.size, ProgressNote::kMostBytes));
  }
  return lines;
}

}  // namespace trireme
