// The flags of `trireme launch`: those of the `deepspeed` command, plus a few of our own.
//   LaunchOptions o = ParseLaunchOptions({"--num_gpus", "4", "train", "--deepspeed_config", "ds_config.json"});
// Rules, as DeepSpeed's: flags stand before PROGRAM, everything from PROGRAM on is passed through untouched; "--flag
// value" and
// "--flag=value"; any unambiguous prefix of a flag; the last of several wins; a value that starts with '-' needs the
// '=' form; the first "--" is dropped. Ours: hyphens and underscores are the same. Flags of DeepSpeed that mean
// something only on several nodes, or only in Python, are known and refused by name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launcher {

struct LaunchOptions {
  std::string hostfile;          // "": none given
  std::string include, exclude;  // "localhost:0,1" or "localhost:0-3"
  int64_t num_nodes = -1;
  int64_t num_gpus = -1;                 // ranks on this node; -1: one a device, 1 without devices
  bool bind_cores = false;               // each rank has cores of its own
  std::string core_list;                 // of which; "": all that are allowed
  std::string master_addr;               // "": 127.0.0.1
  std::optional<int64_t> master_port;    // unset: 29500, or another where that is taken; 0: any free one
  bool cpu = false;                      // ranks see no GPU
  bool oversubscribe = false;            // more ranks than devices
  bool pass_local_rank = false;          // --local_rank=N after PROGRAM
  std::string log_dir;                   // "": a temporary folder, kept only after a failure
  bool each_rank_log = false;            // --enable_each_rank_log DIR: log_dir, and nothing on the console
  std::optional<std::string> tee_ranks;  // "0,2-3", "all" or "none"; unset: rank 0
  int64_t tail_lines = 20;               // of the failing rank, shown in the report
  double term_grace_s = 10;              // SIGTERM to SIGKILL
  std::string log_level = "info";        // debug info warning error critical
  bool dry_run = false;
  bool help = false;

  std::string program;                 // as typed
  std::vector<std::string> arguments;  // of the program
};

// Throws Error{kUsage, LCH001..LCH008}.
LaunchOptions ParseLaunchOptions(const std::vector<std::string>& words);

// Flags of the launcher that stand behind PROGRAM: almost always an error of order.
std::vector<std::string> MisplacedFlags(const LaunchOptions& options);

std::string LaunchHelp();

}  // namespace trireme::launcher
