// DeepSpeed's hostfile: one host a line, "worker-1 slots=8", # starts a remark. The order of lines is the order of
// ranks.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/diagnostics.h"

namespace trireme {

struct Host {
  std::string name;
  int64_t slots = 0;  // ranks on it, at least 1
  int line = 0;
};

// Every wrong line is reported (HST001 form, HST002 twice, HST003 no host, HST004 unreadable); the good ones are
// returned.
std::vector<Host> ParseHostfile(std::string_view text, const std::string& name, Diagnostics& diagnostics);
std::vector<Host> ReadHostfile(const std::filesystem::path& path, Diagnostics& diagnostics);

}  // namespace trireme
