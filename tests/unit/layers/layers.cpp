#include "tests/unit/layers/layers.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace trireme::layers {
namespace {

using Rooms = std::set<std::string>;

// The picture, arrow by arrow; engine/base stands for itself in each. A change here is a change of ARCHITECTURE.md.
const std::map<std::string, Rooms>& Arrows() {
  static const std::map<std::string, Rooms> arrows = [] {
    std::map<std::string, Rooms> below = {
        {"engine/base", {}},
        {"parsers", {}},
        {"launcher", {"parsers"}},
        {"engine/plan", {"parsers"}},
        {"engine/schedule", {"engine/plan", "parsers"}},
        {"engine/advise", {"parsers", "engine/plan", "engine/schedule"}},
        {"engine/report", {"parsers", "engine/plan", "engine/schedule"}},
        {"engine/data", {"engine/plan"}},
        {"checkpoint", {"engine/plan"}},
        {"engine/storage", {"parsers"}},
        {"engine/cli:trireme",
         {"parsers", "launcher", "engine/plan", "engine/schedule", "engine/advise", "engine/report", "engine/data",
          "checkpoint"}},
    };
    std::map<std::string, Rooms> above = {
        {"engine/kernels", {}},
        {"engine/comm", {}},
        {"engine/optim", {"engine/kernels", "engine/comm"}},
        {"engine/zero", {"engine/optim", "engine/kernels", "engine/comm", "engine/storage"}},
        {"engine/model", {"engine/kernels", "engine/comm"}},
        {"engine/execute", {"engine/model", "engine/zero", "engine/kernels", "engine/comm"}},
        {"engine/trainer",
         {"engine/execute", "engine/model", "engine/zero", "engine/optim", "engine/kernels", "engine/comm",
          "engine/data", "checkpoint", "engine/storage", "engine/advise"}},
        {"engine/calibrate", {"engine/trainer", "engine/zero", "engine/kernels", "engine/comm", "engine/storage"}},
        {"engine/cli:trireme-engine",
         {"engine/calibrate", "engine/trainer", "engine/execute", "engine/model", "engine/zero", "engine/optim",
          "engine/kernels", "engine/comm", "engine/data", "checkpoint", "launcher", "engine/cli:trireme",
          "engine/advise"}},
    };
    std::map<std::string, Rooms> all = below;
    for (auto& [room, targets] : above) {
      targets.insert({"parsers", "engine/plan", "engine/schedule"});
      all[room] = targets;
    }
    for (auto& [room, targets] : all) targets.insert({room, "engine/base"});
    return all;
  }();
  return arrows;
}

const Rooms& RoomsBelowTheLine() {
  static const Rooms below = {"engine/base",     "parsers",        "launcher",          "engine/plan",
                              "engine/schedule", "engine/advise",  "engine/report",     "engine/data",
                              "checkpoint",      "engine/storage", "engine/cli:trireme"};
  return below;
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool IsHeader(const std::string& path) {
  const std::string ext = std::filesystem::path(path).extension().string();
  return ext == ".h" || ext == ".cuh" || ext == ".hpp";
}

bool IsLibTorchHeader(const std::string& include) {
  for (const char* folder : {"ATen/", "torch/", "c10/", "caffe2/", "torchgen/"}) {
    if (StartsWith(include, folder)) return true;
  }
  return false;
}

// Files of engine/cli that only trireme-engine compiles or includes: everything there that `trireme`'s own sources do
// not reach.
std::set<std::string> EngineSources(const Tree& tree, const std::vector<std::string>& light_sources) {
  std::set<std::string> engine;
  for (const auto& [path, text] : tree) {
    if (StartsWith(path, "engine/cli/")) engine.insert(path);
  }
  std::vector<std::string> reached;
  for (const std::string& source : light_sources) reached.push_back("engine/cli/" + source);
  while (!reached.empty()) {
    const std::string path = reached.back();
    reached.pop_back();
    const auto file = tree.find(path);
    if (engine.erase(path) == 0 || file == tree.end()) continue;
    for (const Include& include : IncludesOf(file->second)) {
      if (include.quoted) reached.push_back(include.path);
    }
  }
  return engine;
}

std::string RoomOfTest(const std::string& path) {  // tests/unit/plan/x_test.cpp -> engine/plan; "" if it names no room
  std::istringstream parts(path);
  std::string part, name;
  for (int i = 0; i < 3 && std::getline(parts, part, '/'); ++i) name = part;
  for (const auto& [room, targets] : Arrows()) {
    if (room == name || room == "engine/" + name) return room;
  }
  return "";
}

void CheckInclude(const Tree& tree, const std::string& path, const std::string& room,
                  const std::set<std::string>& engine_sources, const Include& include, std::vector<Violation>& out) {
  const bool is_test = StartsWith(path, "tests/");
  const std::string judged = is_test ? RoomOfTest(path) : room;
  const bool below = RoomsBelowTheLine().count(judged) > 0;
  if (IsLibTorchHeader(include.path)) {
    if (below) out.push_back({path, include.line, "below the LibTorch line, includes " + include.path});
    if (IsHeader(path) && include.path == "torch/torch.h") {
      out.push_back({path, include.line, "torch/torch.h in a header: include the narrow headers"});
    }
    return;
  }
  if (!include.quoted) return;
  const bool generated = include.path.ends_with("_generated.h");  // made by CMake in the build folder
  // A test may name a helper that lies beside it.
  if (is_test && tree.count(path.substr(0, path.rfind('/') + 1) + include.path)) return;
  if (!generated && tree.count(include.path) == 0) {
    out.push_back({path, include.line, "\"" + include.path + "\" is no file seen from the root of the sources"});
    return;
  }
  if (is_test || room == "examples") return;
  const std::string target = RoomOf(include.path, engine_sources);
  const auto arrows = Arrows().find(room);
  if (arrows == Arrows().end()) {
    out.push_back({path, include.line, "lies in no room of the picture"});
  } else if (arrows->second.count(target) == 0) {
    out.push_back({path, include.line,
                   "no arrow " + room + " -> " + (target.empty() ? "(no room)" : target) + " for " + include.path});
  }
}

}  // namespace

std::vector<Include> IncludesOf(const std::string& text) {
  std::vector<Include> found;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    const size_t open = line.find_first_of("<\"", at);
    if (open == std::string::npos) continue;
    const size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
    if (close == std::string::npos) continue;
    found.push_back({number, line[open] == '"', line.substr(open + 1, close - open - 1)});
  }
  return found;
}

std::string RoomOf(const std::string& path, const std::set<std::string>& engine_sources) {
  if (StartsWith(path, "engine/cli/"))
    return engine_sources.count(path) ? "engine/cli:trireme-engine" : "engine/cli:trireme";
  const size_t first = path.find('/');
  if (first == std::string::npos) return "";
  const std::string top = path.substr(0, first);
  if (top == "engine") {
    const size_t second = path.find('/', first + 1);
    return second == std::string::npos ? "" : path.substr(0, second);
  }
  if (top == "tests") return path.substr(0, path.rfind('/'));
  return top;
}

Tree ReadTree(const std::string& root) {
  namespace fs = std::filesystem;
  static const std::set<std::string> kExtensions = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"};
  Tree tree;
  for (const char* top : {"engine", "parsers", "checkpoint", "launcher", "examples", "tests"}) {
    if (!fs::exists(fs::path(root) / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / top)) {
      const std::string path = fs::relative(entry.path(), root).generic_string();
      if (!entry.is_regular_file()) continue;
      if (kExtensions.count(entry.path().extension().string()) == 0) continue;
      std::ifstream in(entry.path());
      tree[path] = std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return tree;
}

std::vector<Violation> CheckLayers(const Tree& tree, const std::vector<std::string>& light_sources) {
  std::vector<Violation> out;
  const std::set<std::string> engine_sources = EngineSources(tree, light_sources);
  for (const auto& [path, text] : tree) {
    const std::string room = RoomOf(path, engine_sources);
    for (const Include& include : IncludesOf(text)) CheckInclude(tree, path, room, engine_sources, include, out);
  }
  return out;
}

}  // namespace trireme::layers
