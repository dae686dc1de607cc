#include "engine/cli/bench_layouts.h"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"

namespace trireme::cli {
namespace {

[[noreturn]] void FailLayout(const std::string& what, const std::string& where) {
  throw Error(ErrorCode::kUsage, "BEN001", what, where,
              "join parts by colons: dpN tpN ppN vN zeroN mbN sp 1f1b gpipe zero-bubble cheap full offload, or "
              "KEY=VALUE of the config");
}

// "tp4" for "tp": 4.
std::optional<int64_t> NumberAfter(std::string_view part, std::string_view word) {
  if (!part.starts_with(word) || part.size() == word.size()) return std::nullopt;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(part.data() + word.size(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return value;
}

void AddPart(const std::string& part, BenchCase& layout, std::optional<int64_t>& dp) {
  static const std::map<std::string, std::string> kWords = {
      {"sp", "trireme.sequence_parallel=true"},
      {"1f1b", "trireme.pipeline.schedule=1f1b"},
      {"gpipe", "trireme.pipeline.schedule=gpipe"},
      {"zero-bubble", "trireme.pipeline.schedule=zero-bubble"},
      {"cheap", "trireme.recompute=cheap"},
      {"full", "trireme.recompute=full"},
      {"offload", "zero_optimization.offload_optimizer.device=cpu"},
  };
  if (part.find('=') != std::string::npos) return layout.keys.push_back(part);
  if (const auto word = kWords.find(part); word != kWords.end()) return layout.keys.push_back(word->second);
  if (const auto zero = NumberAfter(part, "zero")) {
    return layout.keys.push_back(fmt::format("zero_optimization.stage={}", *zero));
  }
  if (const auto number = NumberAfter(part, "dp")) {
    dp = number;
  } else if (const auto tp = NumberAfter(part, "tp")) {
    layout.tp = *tp;
  } else if (const auto pp = NumberAfter(part, "pp")) {
    layout.pp = *pp;
  } else if (const auto micro = NumberAfter(part, "mb")) {
    layout.micro_batch = *micro;
  } else if (const auto stages = NumberAfter(part, "v")) {
    layout.keys.push_back(fmt::format("trireme.pipeline.virtual_stages={}", *stages));
  } else {
    FailLayout(fmt::format("\"{}\" is no part of a layout", part), layout.name);
  }
}

BenchCase CaseOf(const std::string& text, int64_t ranks) {
  BenchCase layout;
  layout.name = text;
  std::optional<int64_t> dp;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    // A value may have colons of its own: full:8,cheap:4.
    if (word.find('=') != std::string::npos) {
      AddPart(word, layout, dp);
      continue;
    }
    for (const std::string& part : Split(word, ':')) AddPart(part, layout, dp);
  }
  const int64_t product = layout.tp * layout.pp;
  if (product < 1 || ranks % product != 0 || (dp && *dp * product != ranks)) {
    FailLayout(fmt::format("tp {} x pp {}{} does not make {} ranks", layout.tp, layout.pp,
                           dp ? fmt::format(" x dp {}", *dp) : "", ranks),
               layout.name);
  }
  layout.keys.push_back(fmt::format("tensor_parallel.tp_size={}", layout.tp));
  layout.keys.push_back(fmt::format("pipeline_parallel.pp_size={}", layout.pp));
  return layout;
}

}  // namespace

std::vector<std::string> DefaultLayouts(int64_t ranks) {
  if (ranks == 1) return {"zero0", "zero0:cheap", "zero0:full"};
  std::vector<std::string> names = {fmt::format("dp{}:zero1", ranks), fmt::format("dp{}:zero2", ranks),
                                    fmt::format("dp{}:zero3", ranks), fmt::format("tp{}", ranks),
                                    fmt::format("tp{}:sp", ranks)};
  const int64_t deep = ranks % 4 == 0 && ranks > 4 ? 4 : ranks % 2 == 0 && ranks > 2 ? ranks / 2 : ranks;
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    names.push_back(
        fmt::format("pp{}{}:{}:zero1", deep, ranks > deep ? fmt::format(":dp{}", ranks / deep) : "", schedule));
  }
  return names;
}

std::vector<BenchCase> CasesOf(const std::string& layouts, int64_t ranks) {
  std::vector<std::string> lines;
  std::error_code ignored;
  if (layouts.empty()) {
    lines = DefaultLayouts(ranks);
  } else if (std::filesystem::is_regular_file(layouts, ignored)) {
    lines = Split(ReadFile(layouts, ErrorCode::kUsage), '\n');
  } else {
    lines = Split(layouts, ',');
  }
  std::vector<BenchCase> cases;
  for (const std::string& line : lines) {
    const std::string text(Trim(line));
    if (!text.empty() && text[0] != '#') cases.push_back(CaseOf(text, ranks));
  }
  if (cases.empty()) FailLayout("names no layout", layouts);
  return cases;
}

}  // namespace trireme::cli
