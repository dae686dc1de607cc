// The layer check: which room may include which, as ARCHITECTURE.md draws it. Reads text only.
//   for (const Violation& v : CheckLayers(ReadTree(root), {"main.cpp"})) std::cout << v.file << ":" << v.line << ": "
//   << v.what <<
//   "\n";
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme::layers {

using Tree = std::map<std::string, std::string>;  // path from the root of the sources -> text

struct Violation {
  std::string file;
  int line = 0;
  std::string what;
};

struct Include {
  int line = 0;
  bool quoted = false;  // "..." rather than <...>
  std::string path;
};

// Sources and headers under `root`, without build folders.
Tree ReadTree(const std::string& root);

// The #include lines of one file.
std::vector<Include> IncludesOf(const std::string& text);

// "engine/plan", "parsers", "engine/cli:trireme", "engine/cli:trireme-engine",
// "tests/unit/plan", "examples"; "" for a file outside of every room. `engine_sources`: the files of engine/cli that
// belong to trireme-engine alone.
std::string RoomOf(const std::string& path, const std::set<std::string>& engine_sources);

// Every include that the picture lacks, every quoted include that is not from the root (x_generated.h, made by CMake,
// apart), every LibTorch header below the line, torch/torch.h in a header.
// `light_sources`: the files of engine/cli (names without folder) that make the program `trireme`.
std::vector<Violation> CheckLayers(const Tree& tree, const std::vector<std::string>& light_sources = {});

}  // namespace trireme::layers
