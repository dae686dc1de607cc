#include "launcher/job.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <system_error>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/host_cores.h"
#include "engine/base/strings.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

std::string TimeStamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d%H%M%S", &local);
  return text.data();
}

std::set<int> ShownRanks(const LaunchOptions& options, int num_ranks) {
  const std::string list = options.tee_ranks.value_or(options.each_rank_log ? "none" : "0");
  std::set<int> shown;
  if (list == "none") return shown;
  if (list == "all") {
    for (int rank = 0; rank < num_ranks; ++rank) shown.insert(rank);
    return shown;
  }
  const std::optional<std::vector<int64_t>> ranks = ParseFilter("tee_ranks", "ranks:" + list, "ranks");
  for (const int64_t rank : *ranks) {
    if (rank >= num_ranks) {
      throw Error(ErrorCode::kUsage, "LCH003",
                  fmt::format("rank {} is not among the {} ranks of the job", rank, num_ranks), "--tee_ranks",
                  fmt::format("name ranks from 0 to {}, or write all or none", num_ranks - 1));
    }
    shown.insert(static_cast<int>(rank));
  }
  return shown;
}

std::string DeviceName(const DeviceChoice& choice, int64_t rank) {
  if (choice.tokens.empty()) return "CPU";
  const std::string& token = choice.tokens[static_cast<size_t>(rank) % choice.tokens.size()];
  return token.find('-') == std::string::npos ? "GPU " + token : token;
}

std::map<std::string, std::string> RankEnvironment(const LaunchOptions& options, const DeviceChoice& choice,
                                                   int64_t rank, int master_port, int64_t cores,
                                                   const Surroundings& around) {
  const std::string number = std::to_string(rank), size = std::to_string(choice.num_ranks);
  std::map<std::string, std::string> environment = {
      {"RANK", number},
      {"LOCAL_RANK", number},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"LOCAL_SIZE", size},
      {"CROSS_RANK", "0"},
      {"CROSS_SIZE", "1"},
      {"NODE_RANK", "0"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"MASTER_PORT", std::to_string(master_port)},
      {"MASTER_ADDR", options.master_addr.empty() ? "127.0.0.1" : options.master_addr}};
  if (!choice.tokens.empty() || options.cpu) environment["CUDA_VISIBLE_DEVICES"] = Join(choice.tokens, ",");
  // Decided here, once for all ranks: those that share a GPU cannot use NCCL.
  if (!choice.tokens.empty() && choice.num_ranks > static_cast<int64_t>(choice.tokens.size()))
    environment["TRIREME_OVERSUBSCRIBE"] = "1";
  if (!around.omp_num_threads) environment["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, cores));
  return environment;
}

// The cores of each rank, or nothing for each where none are asked for.
std::vector<Cpus> CoresOfRanks(const LaunchOptions& options, int64_t num_ranks, const Surroundings& around) {
  if (!options.bind_cores) return std::vector<Cpus>(static_cast<size_t>(num_ranks));
  if (around.kmp_affinity) {
    throw Error(ErrorCode::kUsage, "LCH014", "KMP_AFFINITY binds the threads of each rank too, and would undo it",
                "--bind_cores_to_rank", "unset KMP_AFFINITY, or leave --bind_cores_to_rank out");
  }
  return ShareCores(around.cores, options.core_list, static_cast<int>(num_ranks));
}

bool IsExecutableFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::optional<fs::path> FindOnPath(const std::string& name) {
  for (const std::string& folder : Split(env::Text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (IsExecutableFile(candidate)) return fs::absolute(candidate);
  }
  return std::nullopt;
}

}  // namespace

Surroundings FindSurroundings(const LaunchOptions& options) {
  Surroundings around;
  around.host = OwnNames().front();
  around.num_cores = ReadHostCores().usable();
  around.omp_num_threads = env::Text("OMP_NUM_THREADS").has_value();
  around.kmp_affinity = env::Text("KMP_AFFINITY").has_value();
  if (options.bind_cores) around.cores = AllowedCores();
  return around;
}

std::optional<std::string> VisibleDevicesVariable() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");  // unset and empty differ here, unlike in env::Text
  if (value == nullptr) return std::nullopt;
  return value;
}

LocalJob MakeJob(const LaunchOptions& options, const fs::path& program, const std::vector<std::string>& arguments,
                 const DeviceChoice& choice, int master_port, const Surroundings& around) {
  LocalJob job;
  job.host = around.host;
  job.program = program;
  job.stamp = TimeStamp();
  job.keep_logs = !options.log_dir.empty();
  job.log_dir = job.keep_logs ? fs::absolute(options.log_dir)
                              : fs::path(env::Text("TMPDIR").value_or("/tmp")) /
                                    fmt::format("trireme-{}-{}", job.stamp, getpid());
  job.tail_lines = options.tail_lines;
  job.term_grace_s = options.term_grace_s;
  job.shown_ranks = ShownRanks(options, static_cast<int>(choice.num_ranks));
  const std::vector<Cpus> cores = CoresOfRanks(options, choice.num_ranks, around);
  int64_t cores_of_job = around.num_cores;
  if (options.bind_cores) {
    const std::string& list = options.core_list;
    const int64_t bound = list.empty() ? std::ssize(around.cores) : std::ssize(ParseCoreList(list));
    cores_of_job = std::min(cores_of_job, bound);  // a quota may leave fewer than are bound
  }
  for (int64_t rank = 0; rank < choice.num_ranks; ++rank) {
    RankSpec spec;
    spec.cores = cores[static_cast<size_t>(rank)];
    spec.rank = static_cast<int>(rank);
    spec.device = DeviceName(choice, rank);
    spec.words = {program.string()};
    if (options.pass_local_rank) spec.words.push_back(fmt::format("--local_rank={}", rank));
    spec.words.insert(spec.words.end(), arguments.begin(), arguments.end());
    spec.environment = RankEnvironment(options, choice, rank, master_port, cores_of_job / choice.num_ranks, around);
    spec.progress = job.log_dir / fmt::format("{}_rank{}.at", job.stamp, rank);
    job.ranks.push_back(std::move(spec));
  }
  return job;
}

fs::path ResolveProgram(const std::string& program, std::vector<std::string> commands) {
  std::error_code error;
  const bool here = fs::is_regular_file(program, error);
  if (here && IsExecutableFile(program)) return fs::absolute(program);
  if (program.find('/') == std::string::npos) {
    if (const std::optional<fs::path> found = FindOnPath(program)) return *found;
  }
  if (program.ends_with(".py")) {
    throw Error(ErrorCode::kUsage, "LCH010", "Python scripts are not started directly", program,
                "trireme launch [flags] python3 -u " + program);
  }
  if (here) throw Error(ErrorCode::kUsage, "LCH011", "is not executable", program, "chmod +x " + program);
  const std::optional<std::string> near = Suggest(program, commands);
  throw Error(ErrorCode::kUsage, "LCH009", "no such command, file or program on PATH", program,
              near ? "did you mean `trireme launch " + *near + "`?"
                   : "write `train`, another command of trireme, or the path of a program");
}

void CheckNotARank() {
  struct Starter {
    const char* size;
    const char* rank;
    const char* name;
  };
  static constexpr Starter kStarters[] = {{"WORLD_SIZE", "RANK", "torchrun or another launcher"},
                                          {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"},
                                          {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
                                          {"PMI_SIZE", "PMI_RANK", "mpirun"}};
  for (const Starter& starter : kStarters) {
    const std::optional<std::string> size = env::Text(starter.size), rank = env::Text(starter.rank);
    if (!size || !rank || std::atoll(size->c_str()) <= 1) continue;
    throw Error(
        ErrorCode::kUsage, "LCH012",
        fmt::format(
            "this launcher is itself rank {} of {} (started by {}), and would start {} times as many ranks as asked",
            *rank, *size, starter.name, *size),
        fmt::format("{}={} {}={}", starter.rank, *rank, starter.size, *size),
        fmt::format("start `trireme train ...` under {} instead of `trireme launch`, or start one `trireme launch` "
                    "without it; unset the "
                    "variables if they are left over",
                    starter.name));
  }
}

std::string DescribeJob(const LocalJob& job) {
  const RankSpec& first = job.ranks.front();
  std::string devices;
  for (const RankSpec& rank : job.ranks) {
    if (rank.device == "CPU") break;
    devices += fmt::format("{}{} on {}", devices.empty() ? ": rank " : ", rank ", rank.rank, rank.device);
  }
  if (devices.empty()) {
    const auto threads = first.environment.find("OMP_NUM_THREADS");
    devices = " on the CPU";
    if (threads != first.environment.end()) devices += ", OMP_NUM_THREADS " + threads->second + " each";
  }
  if (!first.cores.empty()) {
    std::vector<std::string> shares;
    for (const RankSpec& rank : job.ranks) shares.push_back(CoresText(rank.cores));
    devices += ", cores " + Join(shares, " | ");
  }
  return fmt::format("world size {} on host {}{}; meeting at {}:{}", job.ranks.size(), job.host, devices,
                     first.environment.at("MASTER_ADDR"), first.environment.at("MASTER_PORT"));
}

std::string PrintJob(const LocalJob& job) {
  std::string text = DescribeJob(job) + "\nprogram " + job.program.string() + "\n";
  for (const RankSpec& rank : job.ranks) {
    text += fmt::format("rank {}:", rank.rank);
    for (const auto& [name, value] : rank.environment) text += fmt::format(" {}={}", name, value);
    if (!rank.cores.empty()) text += " cores=" + CoresText(rank.cores);
    text += "\n  " + Join(rank.words, " ") + "\n";
  }
  return text;
}

}  // namespace trireme::launcher
