// A new folder for a test. Its name is its own: another run of the same test may be under way.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace trireme::testing {

inline std::filesystem::path NewTempFolder(const std::string& what) {
  std::string name = (std::filesystem::temp_directory_path() / ("trireme-" + what + "-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder " + name);
  return name;
}

}  // namespace trireme::testing
