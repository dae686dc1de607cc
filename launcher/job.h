// What one job starts on this machine: a program, and for each rank its words and environment. A value: printed,
// compared and tested without starting anything.
//   LocalJob job = MakeJob(options, ResolveProgram(options.program), options.arguments, choice, port.port(),
//   surroundings);
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/cores.h"
#include "launcher/devices.h"
#include "launcher/options.h"

namespace trireme::launcher {

struct RankSpec {
  int rank = 0;                                    // one node: also the local rank
  std::string device;                              // "GPU 3", "GPU-8932f937", "CPU"
  std::vector<std::string> words;                  // argv, the program first
  Cpus cores;                                      // that it may run on; empty: all of the launcher's
  std::map<std::string, std::string> environment;  // set on top of the launcher's own
  std::filesystem::path progress;                  // where it notes what it is at (engine/base/progress_note.h)
};

struct LocalJob {
  std::string host;
  std::filesystem::path program;  // absolute
  std::vector<RankSpec> ranks;
  std::filesystem::path log_dir;
  bool keep_logs = false;     // also after success
  std::string stamp;          // YYYYMMDDHHMMSS, front part of the log files' names
  std::set<int> shown_ranks;  // whose output goes to the console
  int64_t tail_lines = 20;
  double term_grace_s = 10;
};

// What MakeJob takes from the machine.
struct Surroundings {
  std::string host;              // name of this machine
  int64_t num_cores = 1;         // that this process may use
  bool omp_num_threads = false;  // OMP_NUM_THREADS is set
  bool kmp_affinity = false;     // KMP_AFFINITY is set
  std::vector<Cpus> cores = {};  // AllowedCores, where ranks are bound to them: that reads a file a CPU
};
Surroundings FindSurroundings(const LaunchOptions& options);

LocalJob MakeJob(const LaunchOptions& options, const std::filesystem::path& program,
                 const std::vector<std::string>& arguments, const DeviceChoice& choice, int master_port,
                 const Surroundings& surroundings);

// The file to execute: a path, a file of the current folder, or a name on PATH. Throws Error{kUsage, LCH009} if there
// is none, LCH010 for a Python script, LCH011 if it cannot be executed. `commands`: words to suggest.
std::filesystem::path ResolveProgram(const std::string& program, std::vector<std::string> commands);

// A launcher started as one of several ranks would start ranks x ranks processes. Throws Error{kUsage, LCH012} naming
// the variables of torchrun, srun or mpirun that say so.
void CheckNotARank();

std::string DescribeJob(const LocalJob& job);  // one line: ranks and devices
std::string PrintJob(const LocalJob& job);     // --dry_run: everything

// Environment that a launcher reads (README.md lists them): CUDA_VISIBLE_DEVICES, also when it is empty.
std::optional<std::string> VisibleDevicesVariable();

}  // namespace trireme::launcher
