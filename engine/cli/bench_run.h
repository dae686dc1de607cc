// One layout of `trireme bench`: real processes through the launcher, and what they leave behind.
//   report::BenchLayout layout = MeasureLayout(job, "tp2:sp", folder / "2", planned);
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/cli/plan_request.h"
#include "engine/report/bench.h"
#include "parsers/cli.h"

namespace trireme::cli {

struct BenchJob {
  BenchOptions options;
  int64_t ranks = 1;
  bool cpu = false;
  std::string data_path;  // prefix of .bin and .idx
};

// `base`: path without extension; config, output, log and traces of the run lie at base.json, .log, .jsonl and .trace,
// of which base.json is there. Where the run fails, layout.failure has its error. `planned`: of that config.
report::BenchLayout MeasureLayout(const BenchJob& job, const std::string& name, const std::filesystem::path& base,
                                  const Planned& planned);

// One line: "pp 1 x dp 2 x tp 1, ZeRO 1, micro-batch 1 x 8".
std::string DescribeLayout(const Plan& plan);

}  // namespace trireme::cli
