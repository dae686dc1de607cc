#include "launcher/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <set>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "launcher/cores.h"

namespace trireme::launcher {
namespace {

using Set = void (*)(LaunchOptions&, const std::string& flag, const std::string& value);

struct Flag {
  std::string_view name;   // underscores, no dashes
  std::string_view value;  // what --help calls it; "": takes none
  std::string_view help;   // "": an alias, or refused
  Set set;                 // null: refused, for the reason in `refused`
  std::string_view refused;
};

constexpr std::string_view kSeveralNodes = "it belongs to jobs on several nodes, which this version cannot start";
constexpr std::string_view kPython =
    "it belongs to Python programs; start the interpreter as PROGRAM: trireme launch python3 -u train.py";
constexpr std::string_view kElastic = "this version does not restart or resize a job";
constexpr std::string_view kTuner = "this version has no autotuner";
constexpr std::string_view kPidFile =
    "this version writes no pid file; the launcher's process id is the one the shell gives ($!)";

int64_t ToInteger(const std::string& flag, const std::string& value) {
  int64_t number = 0;
  const char* begin = value.data() + (value.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || value.empty()) {
    throw Error(ErrorCode::kUsage, "LCH003", fmt::format("'{}' is no integer", value), "--" + flag,
                "give a decimal number");
  }
  return number;
}

int64_t ToRange(const std::string& flag, const std::string& value, int64_t low, int64_t high) {
  const int64_t number = ToInteger(flag, value);
  if (number >= low && number <= high) return number;
  throw Error(ErrorCode::kUsage, "LCH003", fmt::format("{} is not between {} and {}", number, low, high), "--" + flag,
              "give a number in that range");
}

void ToChoice(const std::string& flag, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw Error(ErrorCode::kUsage, "LCH003", fmt::format("'{}' is none of {}", value, Join(choices, ", ")), "--" + flag,
              "give one of these words");
}

void SetEachRankLog(LaunchOptions& o, const std::string&, const std::string& value) {
  o.each_rank_log = value != "None";  // the word by which DeepSpeed says "off"
  if (o.each_rank_log) o.log_dir = value;
}

void SetNodeRank(LaunchOptions&, const std::string& flag, const std::string& value) {
  const int64_t rank = ToInteger(flag, value);
  if (rank <= 0) return;
  throw Error(ErrorCode::kUsage, "LCH005", fmt::format("{}: {}", rank, kSeveralNodes), "--node_rank",
              "leave it out, or give 0");
}

void SetNumNodes(LaunchOptions& o, const std::string& flag, const std::string& value) {
  o.num_nodes = ToInteger(flag, value);
}

void SetNumGpus(LaunchOptions& o, const std::string& flag, const std::string& value) {
  o.num_gpus = ToInteger(flag, value);
  if (o.num_gpus > 4096) ToRange(flag, value, -1, 4096);
}

void SetLauncher(LaunchOptions&, const std::string& flag, const std::string& value) {
  ToChoice(flag, ToLower(value), {"pdsh", "openmpi", "mpich", "impi", "slurm", "mvapich"});
}

void SetLogLevel(LaunchOptions& o, const std::string& flag, const std::string& value) {
  ToChoice(flag, value, {"debug", "info", "warning", "error", "critical"});
  if (o.log_level != "quiet") o.log_level = value;
}

void SetTermGrace(LaunchOptions& o, const std::string& flag, const std::string& value) {
  o.term_grace_s = static_cast<double>(ToRange(flag, value, 0, 86400));
}

void Ignore(LaunchOptions&, const std::string&, const std::string&) {}

#define TRIREME_TEXT(field) [](LaunchOptions& o, const std::string&, const std::string& v) { o.field = v; }
#define TRIREME_SWITCH(field) [](LaunchOptions& o, const std::string&, const std::string&) { o.field = true; }
#define TRIREME_NUMBER(field, low, high) \
  [](LaunchOptions& o, const std::string& f, const std::string& v) { o.field = ToRange(f, v, low, high); }

const std::vector<Flag>& Flags() {
  static const std::vector<Flag> kFlags = {
      {"hostfile", "FILE", "hosts and slots, one host a line; exactly one host, this machine (short: -H)",
       TRIREME_TEXT(hostfile), ""},
      {"include", "SPEC", "use only these devices: localhost:0,1 or localhost:0-3 (short: -i)", TRIREME_TEXT(include),
       ""},
      {"exclude", "SPEC", "use all devices but these (short: -e)", TRIREME_TEXT(exclude), ""},
      {"num_nodes", "N", "number of nodes; only 1 in this version", SetNumNodes, ""},
      {"num_gpus", "N", "number of ranks: one a GPU, or CPU ranks where there is no GPU", SetNumGpus, ""},
      {"num_accelerators", "N", "same as --num_gpus", SetNumGpus, ""},
      {"num_procs", "N", "same as --num_gpus", SetNumGpus, ""},
      {"cpu", "", "start CPU ranks, which see no GPU", TRIREME_SWITCH(cpu), ""},
      {"oversubscribe", "", "allow more ranks than GPUs: they share them, slowly, for trying layouts",
       TRIREME_SWITCH(oversubscribe), ""},
      {"bind_cores_to_rank", "", "give each rank cores of its own, as many as the others", TRIREME_SWITCH(bind_cores),
       ""},
      {"bind_core_list", "LIST", "the cores to share out: 0,2-5 (default: all that this process may use)",
       [](LaunchOptions& o, const std::string&, const std::string& v) {
         ParseCoreList(v);
         o.core_list = v;
       },
       ""},
      {"master_addr", "ADDR", "address at which the ranks meet (default 127.0.0.1)", TRIREME_TEXT(master_addr), ""},
      {"master_port", "PORT",
       "port at which they meet (default 29500, or a free one where that is taken; 0: a free one)",
       TRIREME_NUMBER(master_port, 0, 65535), ""},
      {"log_dir", "DIR", "keep the whole output of each rank here", TRIREME_TEXT(log_dir), ""},
      {"enable_each_rank_log", "DIR", "same, and nothing on the console", SetEachRankLog, ""},
      {"tee_ranks", "LIST", "ranks shown on the console: 0,2-3, all or none (default 0)", TRIREME_TEXT(tee_ranks), ""},
      {"tail_lines", "N", "lines of the failing rank in the report (default 20)", TRIREME_NUMBER(tail_lines, 0, 10000),
       ""},
      {"term_grace", "SECONDS", "time from SIGTERM to SIGKILL when a job ends (default 10)", SetTermGrace, ""},
      {"pass_local_rank", "", "add --local_rank=N behind PROGRAM, as the deepspeed command does",
       TRIREME_SWITCH(pass_local_rank), ""},
      {"no_local_rank", "", "do not (the default)",
       [](LaunchOptions& o, const std::string&, const std::string&) { o.pass_local_rank = false; }, ""},
      {"dry_run", "", "print what would be started, and start nothing", TRIREME_SWITCH(dry_run), ""},
      {"log_level", "LEVEL", "debug, info, warning, error or critical (default info)", SetLogLevel, ""},
      {"quiet", "", "errors only, whatever --log_level says (short: -q)",
       [](LaunchOptions& o, const std::string&, const std::string&) { o.log_level = "quiet"; }, ""},
      {"help", "", "this text (short: -h)", TRIREME_SWITCH(help), ""},
      // Of no consequence on one node: nothing is started through ssh, and programs are always run as they are.
      {"launcher", "NAME", "", SetLauncher, ""},
      {"no_python", "", "", Ignore, ""},
      {"no_ssh", "", "", Ignore, ""},
      {"no_ssh_check", "", "", Ignore, ""},
      {"node_rank", "N", "", SetNodeRank, ""},
      {"ssh_port", "PORT", "",
       [](LaunchOptions&, const std::string& f, const std::string& v) { ToRange(f, v, 1, 65535); }, ""},
      // Known and refused.
      {"force_multi", "", "", nullptr, kSeveralNodes},
      {"launcher_args", "TEXT", "", nullptr, kSeveralNodes},
      {"venv_script", "FILE", "", nullptr, kPython},
      {"module", "", "", nullptr, kPython},
      {"autotuning", "WORD", "", nullptr, kTuner},
      {"elastic_training", "", "", nullptr, kElastic},
      {"min_elastic_nodes", "N", "", nullptr, kElastic},
      {"max_elastic_nodes", "N", "", nullptr, kElastic},
      {"save_pid", "", "", nullptr, kPidFile},
  };
  return kFlags;
}

#undef TRIREME_TEXT
#undef TRIREME_SWITCH
#undef TRIREME_NUMBER

std::string Underscored(std::string_view word) {
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const Flag& FindLong(const std::string& name) {
  std::vector<const Flag*> matches;
  std::vector<std::string> names;
  for (const Flag& flag : Flags()) {
    if (flag.name == name) return flag;
    if (flag.name.starts_with(name)) matches.push_back(&flag);
    names.emplace_back(flag.name);
  }
  if (matches.size() == 1) return *matches[0];
  if (matches.size() > 1) {
    std::vector<std::string> words;
    for (const Flag* flag : matches) words.push_back("--" + std::string(flag->name));
    throw Error(ErrorCode::kUsage, "LCH002", "could be " + Join(words, " or "), "--" + name,
                "write more of its letters");
  }
  const std::optional<std::string> near = Suggest(name, names);
  throw Error(ErrorCode::kUsage, "LCH001", "no such flag of launch", "--" + name,
              near ? "did you mean --" + *near + "? Flags of the program stand behind its name"
                   : "`trireme launch --help` lists the flags; those of the program stand behind its name");
}

std::string LongOfShort(char letter) {
  switch (letter) {
    case 'H':
      return "hostfile";
    case 'i':
      return "include";
    case 'e':
      return "exclude";
    case 'q':
      return "quiet";
    case 'h':
      return "help";
    default:
      throw Error(ErrorCode::kUsage, "LCH001", "no such flag of launch", fmt::format("-{}", letter),
                  "`trireme launch --help` lists the flags");
  }
}

// A word that starts with '-' is a flag unless it holds a space or is a negative number: DeepSpeed's rule (argparse).
bool LooksLikeFlag(const std::string& word) {
  if (word.size() < 2 || word[0] != '-' || word.find(' ') != std::string::npos) return false;
  return !std::all_of(word.begin() + 1, word.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

struct Typed {  // one flag as typed
  std::string name;
  std::optional<std::string> value;
};

Typed ReadWord(const std::string& word) {
  if (word.starts_with("--")) {
    const size_t equals = word.find('=');
    const std::string name =
        Underscored(std::string_view(word).substr(2, equals == std::string::npos ? equals : equals - 2));
    if (equals == std::string::npos) return {name, std::nullopt};
    return {name, word.substr(equals + 1)};
  }
  if (word.size() == 2) return {LongOfShort(word[1]), std::nullopt};
  return {LongOfShort(word[1]), word.substr(2)};
}

// Applies the flag at `words[i]` and returns the index behind it.
size_t ApplyFlag(const std::vector<std::string>& words, size_t i, LaunchOptions& options) {
  Typed typed = ReadWord(words[i]);
  const Flag& flag = FindLong(typed.name);
  const std::string name(flag.name);
  if (flag.set == nullptr) {
    throw Error(ErrorCode::kUsage, "LCH005", std::string(flag.refused), "--" + name, "leave the flag out");
  }
  size_t next = i + 1;
  if (flag.value.empty()) {
    if (typed.value)
      throw Error(ErrorCode::kUsage, "LCH004", "takes no value", "--" + name, "write --" + name + " alone");
  } else if (!typed.value) {
    if (next >= words.size() || LooksLikeFlag(words[next])) {
      throw Error(ErrorCode::kUsage, "LCH004", "needs a value", "--" + name,
                  fmt::format("write --{}={}", name, flag.value));
    }
    typed.value = words[next++];
  }
  flag.set(options, name, typed.value.value_or(""));
  return next;
}

void CheckOptions(const LaunchOptions& options) {
  if (options.num_nodes > 1) {
    throw Error(ErrorCode::kUsage, "LCH006",
                fmt::format("{} nodes asked, this version starts the ranks of one machine", options.num_nodes),
                "--num_nodes",
                "leave it out, or start `trireme train` through srun, mpirun or torchrun, one process a GPU, with "
                "MASTER_ADDR set to the host of rank 0");
  }
  if (!options.include.empty() && !options.exclude.empty()) {
    throw Error(ErrorCode::kUsage, "LCH007", "--include and --exclude contradict each other", "", "keep one of them");
  }
  if (!options.core_list.empty() && !options.bind_cores) {
    throw Error(ErrorCode::kUsage, "LCH007", "--bind_core_list has no effect without --bind_cores_to_rank", "",
                "add --bind_cores_to_rank, or leave the list out");
  }
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  if (filtered && options.num_gpus >= 0) {
    throw Error(ErrorCode::kUsage, "LCH007", "--num_gpus and --include or --exclude contradict each other", "",
                "keep the filter, which says how many ranks there are, or the number");
  }
  if (options.program.empty()) {
    throw Error(ErrorCode::kUsage, "LCH008", "no program to start", "",
                "write it behind the flags: trireme launch --num_gpus 2 train --deepspeed_config ds_config.json");
  }
}

}  // namespace

LaunchOptions ParseLaunchOptions(const std::vector<std::string>& words) {
  LaunchOptions options;
  bool dashes_seen = false;
  size_t i = 0;
  while (i < words.size() && words[i].size() > 1 && words[i][0] == '-') {
    if (words[i] == "--") {
      dashes_seen = true;
      ++i;
      break;
    }
    i = ApplyFlag(words, i, options);
    if (options.help) return options;
  }
  if (i < words.size()) options.program = words[i++];
  for (; i < words.size(); ++i) {
    if (words[i] == "--" && !dashes_seen) {
      dashes_seen = true;  // the first one is dropped, as DeepSpeed does
      continue;
    }
    options.arguments.push_back(words[i]);
  }
  CheckOptions(options);
  return options;
}

std::vector<std::string> MisplacedFlags(const LaunchOptions& options) {
  // Only names that no trainer has for itself.
  static constexpr auto kOurs =
      std::to_array<std::string_view>({"hostfile", "include", "exclude", "num_gpus", "num_nodes", "num_accelerators",
                                       "master_port", "master_addr", "launcher"});
  std::vector<std::string> found;
  for (const std::string& word : options.arguments) {
    if (!word.starts_with("--")) continue;
    const std::string name = Underscored(
        std::string_view(word).substr(2, word.find('=') == std::string::npos ? word.npos : word.find('=') - 2));
    if (std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end()) found.push_back("--" + name);
  }
  return found;
}

std::string LaunchHelp() {
  std::string text =
      "usage: trireme launch [flags] PROGRAM [arguments of PROGRAM]\n"
      "PROGRAM: train, or another command of trireme, or a program of your own.\n\n";
  for (const Flag& flag : Flags()) {
    if (flag.help.empty()) continue;
    text += fmt::format("  {:<28} {}\n", fmt::format("--{}{}{}", flag.name, flag.value.empty() ? "" : " ", flag.value),
                        flag.help);
  }
  return text +
         "\nAlso taken, without effect on one node: --launcher --no_python --no_ssh --no_ssh_check --node_rank 0 "
         "--ssh_port.\n";
}

}  // namespace trireme::launcher
