#include "engine/cli/host_findings.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/env.h"
#include "engine/base/host_cores.h"
#include "engine/base/host_memory.h"
#include "engine/base/strings.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kLeastSharedMemory = kGiB;              // NCCL's buffers of some ranks; containers get 64 MiB
constexpr int64_t kLeastLockedMemory = int64_t{1} << 28;  // what InfiniBand registers
constexpr rlim_t kLeastFiles = 4096;                      // sockets and checkpoint files of many ranks
constexpr double kFullDisk = 0.05, kFullMemory = 0.1;     // free shares that call for a warning

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string FirstLine(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return std::string(Trim(line));
}

std::optional<int64_t> NumberIn(const fs::path& path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// "MemTotal:  16 kB" of /proc/meminfo, "model name : X" of /proc/cpuinfo: the text after the first such name.
std::string FieldOf(const std::string& text, std::string_view name) {
  for (const std::string& line : Split(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && Trim(std::string_view(line).substr(0, colon)) == name)
      return std::string(Trim(std::string_view(line).substr(colon + 1)));
  }
  return "";
}

int64_t KilobytesOf(const std::string& text, std::string_view name) {
  const std::string value = FieldOf(text, name);
  return value.empty() ? 0 : std::strtoll(value.c_str(), nullptr, 10) * 1024;
}

std::string LimitText(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : FormatBytes(static_cast<int64_t>(value));
}

}  // namespace

Findings ProcessorFindings(const HostSources& sources) {
  Findings found;
  const std::string info = ReadText(sources.root / "proc/cpuinfo");
  const HostCores host = ReadHostCores(sources.root);
  const int cores = host.allowed;
  const std::string flags = " " + FieldOf(info, "flags") + " ";
  const auto has = [&](std::string_view flag) { return flags.find(fmt::format(" {} ", flag)) != std::string::npos; };
  const std::string_view level = has("avx512f") ? "AVX-512" : has("avx2") ? "AVX2" : "neither AVX2 nor AVX-512";
  found.push_back(
      {Health::kOk, "cpu",
       fmt::format("{}: {} cores for this process, {}{}",
                   FieldOf(info, "model name").empty() ? "a processor" : FieldOf(info, "model name"), cores, level,
                   has("amx_bf16")      ? ", AMX"
                   : has("avx512_bf16") ? ", AVX512-BF16"
                                        : ""),
       "", ""});
  if (!flags.empty() && !has("avx2") && flags.size() > 2) {
    found.push_back({Health::kWarning, "cpu", "no AVX2: updates on the CPU take several times as long", "/proc/cpuinfo",
                     "use a processor with AVX2, or a virtual machine that shows it; keep the optimizer on the GPU"});
  }
  if (host.quota < cores) {
    found.push_back({Health::kWarning, "cpu",
                     fmt::format("the control group grants {:.2g} of {} cores", host.quota, cores), "/sys/fs/cgroup",
                     "give the container more cores (--cpus) where updates run on the CPU or ranks are CPU ranks"});
  }
  const int usable = host.usable();
  if (const auto threads = env::FirstInteger("OMP_NUM_THREADS"); threads && *threads > usable) {
    found.push_back({Health::kWarning, "cpu", fmt::format("{} threads a rank on {} cores", *threads, usable),
                     "OMP_NUM_THREADS", "unset it: the launcher shares the cores out"});
  }
  std::ifstream load_file(sources.root / "proc/loadavg");
  if (double load = 0; load_file >> load && load > 0.5 * cores) {
    found.push_back({Health::kWarning, "load", fmt::format("{:.1f} programs run on {} cores", load, cores),
                     "/proc/loadavg", "measure when the machine is idle: figures of bench and calibrate suffer"});
  }
  return found;
}

Findings MemoryFindings(const HostSources& sources) {
  Findings found;
  const std::string info = ReadText(sources.root / "proc/meminfo");
  const int64_t total = KilobytesOf(info, "MemTotal"), free = KilobytesOf(info, "MemAvailable");
  const bool tight = static_cast<double>(free) < kFullMemory * static_cast<double>(total);
  found.push_back({tight ? Health::kWarning : Health::kOk, "memory",
                   fmt::format("{}, of which {} are free; swap {}", FormatBytes(total), FormatBytes(free),
                               FormatBytes(KilobytesOf(info, "SwapTotal"))),
                   "/proc/meminfo", tight ? "end other programs: what is offloaded lies here" : ""});
  if (const HostMemory memory = ReadHostMemory(sources.root); memory.is_group && memory.limit < total) {
    found.push_back({Health::kWarning, "memory",
                     fmt::format("the control group allows {} of {}; past it the kernel kills the process",
                                 FormatBytes(memory.limit), FormatBytes(total)),
                     "memory.max", "raise the container's limit (--memory) where states are offloaded"});
  }
  return found;
}

Findings SharedMemoryFindings(const HostSources& sources) {
  struct statvfs info {};
  const fs::path path = sources.root / "dev/shm";
  if (statvfs(path.c_str(), &info) != 0) {
    return {{Health::kProblem, "shared memory", fmt::format("cannot be used: {}", std::strerror(errno)), "/dev/shm",
             "mount a tmpfs at /dev/shm: NCCL passes data between ranks of a machine through it"}};
  }
  const auto total = static_cast<int64_t>(info.f_blocks * info.f_frsize),
             free = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  const bool small = free < kLeastSharedMemory;
  return {{small ? Health::kWarning : Health::kOk, "shared memory",
           fmt::format("{}, of which {} are free", FormatBytes(total), FormatBytes(free)), "/dev/shm",
           small ? "start the container with --shm-size=8g or --ipc=host: NCCL passes data through it where GPUs have "
                   "no direct way"
                 : ""}};
}

Findings LimitFindings(const HostSources& sources) {
  Findings found;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool few = limit.rlim_cur < kLeastFiles;
  const std::string files =
      limit.rlim_cur == RLIM_INFINITY ? "any number of" : FormatCount(static_cast<int64_t>(limit.rlim_cur));
  found.push_back({few ? Health::kWarning : Health::kOk, "limits", fmt::format("{} open files", files), "ulimit -n",
                   few ? fmt::format("ulimit -n {}, or raise nofile in /etc/security/limits.conf", kLeastFiles) : ""});
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool infiniband = fs::exists(sources.root / "sys/class/infiniband");
  const bool little = infiniband && limit.rlim_cur < static_cast<rlim_t>(kLeastLockedMemory);
  found.push_back({little ? Health::kWarning : Health::kOk, "limits",
                   fmt::format("locked memory {}", LimitText(limit.rlim_cur)), "ulimit -l",
                   little ? "ulimit -l unlimited: InfiniBand registers its buffers" : ""});
  getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) {
    found.push_back({Health::kProblem, "limits", fmt::format("address space {}", LimitText(limit.rlim_cur)),
                     "ulimit -v", "ulimit -v unlimited: CUDA reserves far more addresses than memory"});
  }
  return found;
}

Findings HugePageFindings(const HostSources& sources) {
  const std::string mode = FirstLine(sources.root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (mode.empty()) return {};
  const size_t open = mode.find('['), close = mode.find(']');
  const std::string chosen =
      open < close && close != std::string::npos ? mode.substr(open + 1, close - open - 1) : mode;
  const bool never = chosen == "never";
  return {{never ? Health::kWarning : Health::kOk, "huge pages", fmt::format("transparent huge pages: {}", chosen),
           "/sys/kernel/mm/transparent_hugepage/enabled",
           never ? "write madvise or always to it: updates on the CPU go through gigabytes" : ""}};
}

Findings ClockFindings() {
  timex clock{};
  const int state = adjtimex(&clock);
  if (state < 0) return {{Health::kOk, "clock", "whether it is kept in time cannot be seen here", "adjtimex", ""}};
  const bool wild = state == TIME_ERROR || (clock.status & STA_UNSYNC) != 0;
  return {{wild ? Health::kWarning : Health::kOk, "clock",
           wild ? "not synchronised: logs and checkpoints of several machines would disagree"
                : fmt::format("synchronised, within {} us", clock.maxerror),
           "adjtimex", wild ? "run chrony or systemd-timesyncd on the host" : ""}};
}

Findings NetworkFindings(const HostSources& sources) {
  Findings found;
  std::error_code ignored;
  std::vector<fs::path> ports;
  for (const auto& device : fs::directory_iterator(sources.root / "sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) ports.push_back(port.path());
  }
  std::ranges::sort(ports);
  for (const fs::path& port : ports) {
    const std::string name =
        fmt::format("{} port {}", port.parent_path().parent_path().filename().string(), port.filename().string());
    const std::string state = FirstLine(port / "state"), rate = FirstLine(port / "rate");
    const bool active = state.find("ACTIVE") != std::string::npos;
    found.push_back({active ? Health::kOk : Health::kWarning, "infiniband",
                     fmt::format("{}: {}, {}, {}", name, state, rate, FirstLine(port / "link_layer")), port.string(),
                     active ? "" : "look at cable and subnet manager (ibstat), or take the port out with NCCL_IB_HCA"});
  }
  if (ports.empty()) found.push_back({Health::kOk, "infiniband", "no ports: several machines would use TCP", "", ""});
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  addrinfo* addresses = nullptr;
  const int status = getaddrinfo(name.data(), nullptr, nullptr, &addresses);
  if (status == 0) freeaddrinfo(addresses);
  found.push_back(
      {status == 0 ? Health::kOk : Health::kWarning, "network",
       fmt::format("this machine's name {} {}", name.data(),
                   status == 0 ? "has an address" : fmt::format("has no address: {}", gai_strerror(status))),
       "/etc/hosts", status == 0 ? "" : "add it to /etc/hosts, or name addresses in MASTER_ADDR"});
  return found;
}

Findings DiskFindings(const HostSources& sources) {
  const fs::path path = sources.nvme_path.empty() ? fs::path(".") : sources.nvme_path;
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0 || access(path.c_str(), W_OK) != 0) {
    return {{Health::kProblem, "disk", fmt::format("cannot be written: {}", std::strerror(errno)), path.string(),
             "make the folder, or name another one with --nvme_path"}};
  }
  Findings found;
  const auto total = static_cast<double>(info.f_blocks) * static_cast<double>(info.f_frsize);
  const auto free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  const bool full = free < kFullDisk * total;
  found.push_back(
      {full ? Health::kWarning : Health::kOk, "disk",
       fmt::format("{} free of {}", FormatBytes(static_cast<int64_t>(free)), FormatBytes(static_cast<int64_t>(total))),
       path.string(), full ? "make room: a checkpoint that does not fit ends the run" : ""});
  const std::string probe = (path / fmt::format(".trireme-doctor-{}", getpid())).string();
  const int fd = open(probe.c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  unlink(probe.c_str());
  if (fd < 0) {
    found.push_back({Health::kWarning, "disk",
                     fmt::format("no direct access (O_DIRECT): {}; states there would pass through the page cache",
                                 std::strerror(errno)),
                     path.string(), "put nvme_path on a local ext4 or xfs"});
  }
  if (const auto disabled = NumberIn(sources.root / "proc/sys/kernel/io_uring_disabled"); disabled && *disabled > 0) {
    found.push_back({Health::kWarning, "disk", "the kernel refuses io_uring: threads take its place",
                     "/proc/sys/kernel/io_uring_disabled", "sysctl kernel.io_uring_disabled=0 on the host"});
  }
  return found;
}

Findings HostFindings(const HostSources& sources) {
  Findings found = ProcessorFindings(sources);
  Append(found, MemoryFindings(sources));
  Append(found, SharedMemoryFindings(sources));
  Append(found, LimitFindings(sources));
  Append(found, HugePageFindings(sources));
  Append(found, ClockFindings());
  Append(found, NetworkFindings(sources));
  Append(found, DiskFindings(sources));
  return found;
}

}  // namespace trireme::cli
