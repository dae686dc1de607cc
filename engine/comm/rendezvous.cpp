// RendezvousInfo from the environment: the variables of torchrun and `trireme launch`, else those of mpirun and srun.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/comm/store.h"

namespace trireme {
namespace {

constexpr int kMostRanks = 1 << 24;

[[noreturn]] void ThrowEnvironment(
    const std::string& what, const std::string& where,
    const std::string& fix =
        "start the program with `trireme launch`, torchrun, srun or mpirun, which set the "
        "variables of each rank, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every "
        "rank") {
  throw Error(ErrorCode::kEnvironment, "COM001", what, where, fix);
}

int InRange(const char* name, int64_t value, int64_t lowest, int64_t highest) {
  if (value < lowest || value > highest) {
    ThrowEnvironment(fmt::format("{} lies outside {} .. {}", value, lowest, highest), name);
  }
  return static_cast<int>(value);
}

int ReadInt(const char* name, int64_t lowest, int64_t highest, std::optional<int> absent) {
  const std::optional<int64_t> value = env::Integer(name);
  if (!value && absent) return *absent;
  if (!value) ThrowEnvironment("the variable is not set, while WORLD_SIZE is above 1", name);
  return InRange(name, *value, lowest, highest);
}

// What a starter of many processes says of this one; nullopt is what it does not say.
struct Starter {
  const char* name;
  const char* world_variable;
  const char* rank_variable;
  std::optional<int64_t> world, rank, local_rank, local_world;
  std::string job;  // tells jobs of one host apart
};

// Tasks on node `node` by a list such as "4(x2),3": 4, 4, 3.
std::optional<int64_t> TasksOnNode(const std::string& list, int64_t node) {
  for (const std::string& part : Split(list, ',')) {
    int64_t tasks = 0, nodes = 1;
    const char* const end = part.data() + part.size();
    const auto [rest, error] = std::from_chars(part.data(), end, tasks);
    if (error != std::errc()) return std::nullopt;
    const std::string_view repeat(rest, static_cast<size_t>(end - rest));
    if (repeat.starts_with("(x") && std::from_chars(repeat.data() + 2, end, nodes).ec != std::errc())
      return std::nullopt;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return std::nullopt;
}

// SLURM_NTASKS and SLURM_PROCID=0 stand in a batch script as well, which is one process: only a step that srun has
// started has SLURM_STEP_NUM_TASKS.
Starter Slurm() {
  Starter slurm{"srun",
                "SLURM_STEP_NUM_TASKS",
                "SLURM_PROCID",
                env::Integer("SLURM_STEP_NUM_TASKS"),
                env::Integer("SLURM_PROCID"),
                env::Integer("SLURM_LOCALID"),
                std::nullopt,
                ""};
  const auto tasks = env::Text("SLURM_STEP_TASKS_PER_NODE");
  const auto node = env::Integer("SLURM_NODEID");
  auto hosts = env::Integer("SLURM_STEP_NUM_NODES");
  if (!hosts) hosts = env::Integer("SLURM_NNODES");
  if (hosts == 1) {
    slurm.local_world = slurm.world;
  } else if (tasks && node) {
    slurm.local_world = TasksOnNode(*tasks, *node);
  }
  slurm.job =
      fmt::format("slurm{}.{}/", env::Text("SLURM_JOB_ID").value_or(""), env::Text("SLURM_STEP_ID").value_or(""));
  return slurm;
}

Starter OpenMpi() {
  return {"mpirun",
          "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_RANK",
          env::Integer("OMPI_COMM_WORLD_SIZE"),
          env::Integer("OMPI_COMM_WORLD_RANK"),
          env::Integer("OMPI_COMM_WORLD_LOCAL_RANK"),
          env::Integer("OMPI_COMM_WORLD_LOCAL_SIZE"),
          ""};
}

Starter Pmi() {  // MPICH and Intel MPI; srun --mpi=pmi2 too, without the local ones
  return {"mpirun",
          "PMI_SIZE",
          "PMI_RANK",
          env::Integer("PMI_SIZE"),
          env::Integer("PMI_RANK"),
          env::Integer("MPI_LOCALRANKID"),
          env::Integer("MPI_LOCALNRANKS"),
          ""};
}

// mpirun in an allocation of Slurm starts its helpers, one a node, with srun: their variables reach the ranks too, so
// those of MPI come first.
std::optional<Starter> FindStarter() {
  if (Starter mpi = OpenMpi(); mpi.world > 1) return mpi;
  Starter pmi = Pmi(), slurm = Slurm();
  const bool one = pmi.world == slurm.world && pmi.rank == slurm.rank;
  if (pmi.world > 1 && !(one && !pmi.local_rank)) return pmi;
  if (slurm.world > 1) return slurm;
  return std::nullopt;
}

void ReadMaster(const Starter& starter, RendezvousInfo& info) {
  info.master_port = ReadInt("MASTER_PORT", 1, 65535, info.master_port);
  if (const auto address = env::Text("MASTER_ADDR")) {
    info.master_addr = *address;
  } else if (starter.local_world != starter.world) {
    const std::string here = starter.local_world ? fmt::format("{} run on this host", *starter.local_world)
                                                 : "how many of them run on this host is not known";
    ThrowEnvironment(
        fmt::format("the variable is not set, while {} started {} ranks of which {}", starter.name, *starter.world,
                    here),
        "MASTER_ADDR",
        "give every rank the host of rank 0: `export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | "
        "head -n 1)` before srun, `mpirun -x MASTER_ADDR=HOST` (Open MPI), `mpiexec -genv MASTER_ADDR HOST` (MPICH, "
        "Intel MPI)");
  }
}

RendezvousInfo Started(const Starter& starter) {
  RendezvousInfo info;
  info.world = InRange(starter.world_variable, *starter.world, 1, kMostRanks);
  if (!starter.rank) {
    ThrowEnvironment(fmt::format("the variable is not set, while {} is {}", starter.world_variable, info.world),
                     starter.rank_variable);
  }
  info.rank = InRange(starter.rank_variable, *starter.rank, 0, info.world - 1);
  if (const auto rank = env::Integer("RANK"); rank && *rank != info.rank) {
    ThrowEnvironment(fmt::format("is {}, while {} started this process as {}={} and WORLD_SIZE is not set", *rank,
                                 starter.name, starter.rank_variable, info.rank),
                     "RANK", "unset RANK, or set WORLD_SIZE as well");
  }
  auto local = env::Integer("LOCAL_RANK");
  if (!local) local = starter.local_rank;
  if (!local && starter.local_world == info.world) local = info.rank;
  if (!local) {
    ThrowEnvironment(
        fmt::format("the variable is not set, and {} does not say which rank of its host this is", starter.name),
        "LOCAL_RANK", "set LOCAL_RANK on every rank: 0, 1, ... on each host; it chooses the GPU");
  }
  info.local_rank = InRange("LOCAL_RANK", *local, 0, info.world - 1);
  info.local_world = InRange("LOCAL_WORLD_SIZE", starter.local_world.value_or(info.world), 1, info.world);
  ReadMaster(starter, info);
  info.prefix = starter.job;
  return info;
}

RendezvousInfo Given() {
  RendezvousInfo info;
  info.world = ReadInt("WORLD_SIZE", 1, kMostRanks, 1);
  const bool several = info.world > 1;
  info.rank = ReadInt("RANK", 0, info.world - 1, several ? std::nullopt : std::optional<int>(0));
  info.local_rank = ReadInt("LOCAL_RANK", 0, info.world - 1, 0);
  info.local_world = info.world;
  info.master_port = ReadInt("MASTER_PORT", 1, 65535, several ? std::nullopt : std::optional<int>(info.master_port));
  if (const auto address = env::Text("MASTER_ADDR")) {
    info.master_addr = *address;
  } else if (several) {
    ThrowEnvironment("the variable is not set, while WORLD_SIZE is above 1", "MASTER_ADDR");
  }
  return info;
}

}  // namespace

RendezvousInfo RendezvousInfo::FromEnvironment() {
  const std::optional<Starter> starter = env::Text("WORLD_SIZE") ? std::nullopt : FindStarter();
  RendezvousInfo info = starter ? Started(*starter) : Given();
  info.local_world = std::min(info.world, ReadInt("LOCAL_WORLD_SIZE", 1, kMostRanks, info.local_world));
  info.hosts_store = !env::Flag("TORCHELASTIC_USE_AGENT_STORE");
  if (const auto count = env::Integer("TORCHELASTIC_RESTART_COUNT")) info.prefix += fmt::format("start{}/", *count);
  return info;
}

}  // namespace trireme
