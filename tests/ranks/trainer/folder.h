// A folder of a test's own under the system's temporary one, removed with the object.
#pragma once
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

namespace trireme::test {

struct Folder {
  Folder() {
    static std::atomic<int> count = 0;
    path = std::filesystem::temp_directory_path() / fmt::format("trireme_test_{}_{}", ::getpid(), count++);
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path;
};

}  // namespace trireme::test
