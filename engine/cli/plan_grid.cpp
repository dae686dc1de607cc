// The rank grid as lines of text.
#include <fmt/core.h>

#include "engine/cli/plan_text.h"

namespace trireme::cli {
namespace {

constexpr int kMostCells = 8, kMostRows = 12;

// "0-7", "6-7|8-13" where a node ends inside.
std::string Cell(int first, int last, int64_t ranks_per_node) {
  std::string text;
  for (int begin = first; begin <= last;) {
    const int64_t node_end = (begin / ranks_per_node + 1) * ranks_per_node - 1;
    const int end = static_cast<int>(std::min<int64_t>(last, node_end));
    text += fmt::format("{}{}", text.empty() ? "" : "|", begin);
    if (end > begin) text += fmt::format("-{}", end);
    begin = end + 1;
  }
  return text;
}

std::string Row(const Topology& t, int pp_rank, int64_t ranks_per_node) {
  std::string text = t.pp_size > 1 ? fmt::format("pp {}: ", pp_rank) : "";
  for (int dp = 0; dp < t.dp_size; ++dp) {
    const int first = t.RankOf({pp_rank, dp, 0});
    if (dp > 0) text += first / ranks_per_node != (first - 1) / ranks_per_node ? " | " : " ";
    if (t.dp_size > kMostCells && dp == kMostCells - 1) {
      text += "... ";
      dp = t.dp_size - 1;
    }
    const int begin = t.RankOf({pp_rank, dp, 0});
    text += Cell(begin, begin + t.tp_size - 1, ranks_per_node);
  }
  return text;
}

}  // namespace

std::vector<std::string> GridLines(const Topology& topology, int64_t ranks_per_node) {
  std::vector<std::string> lines;
  for (int pp = 0; pp < topology.pp_size; ++pp) {
    if (topology.pp_size > kMostRows && pp == kMostRows - 1) {
      lines.push_back("...");
      pp = topology.pp_size - 1;
    }
    lines.push_back(Row(topology, pp, ranks_per_node));
  }
  std::string legend = topology.tp_size > 1 ? "a-b: one tensor-parallel group" : "";
  if (topology.world_size() > ranks_per_node) legend += fmt::format("{}|: another node", legend.empty() ? "" : "; ");
  if (!legend.empty()) lines.push_back(fmt::format("({})", legend));
  return lines;
}

}  // namespace trireme::cli
