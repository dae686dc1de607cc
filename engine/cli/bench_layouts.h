// What `trireme bench --layouts` means.
//   for (const BenchCase& c : CasesOf("dp2,tp2:sp", 2)) WithKeys(config, name, c.keys)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

struct BenchCase {
  std::string name;               // as written
  std::vector<std::string> keys;  // "tensor_parallel.tp_size=2": for WithKeys (parsers/layout_text.h)
  int64_t tp = 1, pp = 1;
  int64_t micro_batch = 0;  // sequences; 0: not said
};

// "dp2,tp2:sp,pp2:zero-bubble:mb4", or the name of a file with one a line (empty lines and # are left out), whose parts
// may be KEY=VALUE too. "": DefaultLayouts. Throws Error{kUsage, BEN001} for what is no layout of so many ranks.
std::vector<BenchCase> CasesOf(const std::string& layouts, int64_t ranks);

// The comparison of data, tensor and pipeline parallelism and of ZeRO stages that so many ranks allow.
std::vector<std::string> DefaultLayouts(int64_t ranks);

}  // namespace trireme::cli
