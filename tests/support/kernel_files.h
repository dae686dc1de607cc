// A folder that looks like the kernel's /proc and /sys, for what takes the place where they hang. It goes away with the
// object. A fixture of tests inherits it, a single test has one.
//   Write("proc/self/cgroup", "0::/jobs/seven\n");  ReadHostCores(root_);
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/support/temp_folder.h"

namespace trireme::testing {

class KernelFiles {
 public:
  KernelFiles() = default;
  KernelFiles(const KernelFiles&) = delete;
  KernelFiles& operator=(const KernelFiles&) = delete;
  ~KernelFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const std::filesystem::path& root() const { return root_; }

 protected:
  const std::filesystem::path root_ = NewTempFolder("kernel");
};

}  // namespace trireme::testing
