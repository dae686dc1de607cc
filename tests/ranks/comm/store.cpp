// The rendezvous: keys, barriers, environment, and every way in which it can fail.
#include "engine/comm/store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "tests/support/run_ranks.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string Caught(const std::string& id, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), id) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

struct Environment {  // restores what it changes
  explicit Environment(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : values) setenv(name, value, 1);
  }
  ~Environment() {
    for (const char* name : kNames) unsetenv(name);
  }
  static constexpr const char* kNames[] = {"RANK",
                                           "LOCAL_RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "PMI_SIZE",
                                           "PMI_RANK",
                                           "MPI_LOCALRANKID",
                                           "MPI_LOCALNRANKS",
                                           "SLURM_JOB_ID",
                                           "SLURM_STEP_ID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_NUM_NODES",
                                           "SLURM_STEP_TASKS_PER_NODE",
                                           "SLURM_NNODES",
                                           "SLURM_NTASKS",
                                           "SLURM_PROCID",
                                           "SLURM_LOCALID",
                                           "SLURM_NODEID"};
};

TEST(Rendezvous, NothingSetIsOneProcessWithoutAStore) {
  const Environment environment(std::initializer_list<std::pair<const char*, const char*>>{});
  const auto info = RendezvousInfo::FromEnvironment();
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world, 1);
  EXPECT_EQ(Store::Connect(info), nullptr);
}

TEST(Rendezvous, ReadsWhatALauncherSets) {
  const Environment environment({{"RANK", "5"},
                                 {"LOCAL_RANK", "1"},
                                 {"WORLD_SIZE", "8"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "2345"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                 {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const auto info = RendezvousInfo::FromEnvironment();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.world, 8);
  EXPECT_EQ(info.local_world, 8);
  EXPECT_EQ(info.master_addr, "node0");
  EXPECT_EQ(info.master_port, 2345);
  EXPECT_FALSE(info.hosts_store);
  EXPECT_EQ(info.prefix, "start2/");
}

TEST(Rendezvous, NamesTheVariableThatIsMissingOrWrong) {
  {
    const Environment environment({{"WORLD_SIZE", "2"}, {"RANK", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
    const std::string text = Caught("COM001", [] { RendezvousInfo::FromEnvironment(); });
    EXPECT_TRUE(Contains(text, "RANK: 2 lies outside 0 .. 1")) << text;
  }
  {
    const Environment environment({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_PORT", "1"}});
    const std::string text = Caught("COM001", [] { RendezvousInfo::FromEnvironment(); });
    EXPECT_TRUE(Contains(text, "MASTER_ADDR: the variable is not set")) << text;
  }
  {
    const Environment environment({{"WORLD_SIZE", "two"}});
    EXPECT_TRUE(Contains(Caught("ENV001", [] { RendezvousInfo::FromEnvironment(); }), "WORLD_SIZE"));
  }
}

// Rank, ranks, and the same on this host.
std::string Place(const RendezvousInfo& info) {
  return std::to_string(info.rank) + " of " + std::to_string(info.world) + ", here " + std::to_string(info.local_rank) +
         " of " + std::to_string(info.local_world);
}

using Values = std::initializer_list<std::pair<const char*, const char*>>;

std::string PlaceWith(Values values) {
  const Environment environment(values);
  return Place(RendezvousInfo::FromEnvironment());
}

TEST(Rendezvous, MpirunOnOneHostIsOneJob) {
  const Environment environment({{"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_RANK", "3"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  const auto info = RendezvousInfo::FromEnvironment();
  EXPECT_EQ(Place(info), "3 of 4, here 3 of 4");
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_TRUE(info.hosts_store);
}

TEST(Rendezvous, MpichAndIntelMpi) {
  EXPECT_EQ(PlaceWith({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
            "1 of 2, here 1 of 2");
  EXPECT_EQ(PlaceWith({{"PMI_SIZE", "4"},
                       {"PMI_RANK", "3"},
                       {"MPI_LOCALRANKID", "1"},
                       {"MPI_LOCALNRANKS", "2"},
                       {"MASTER_ADDR", "node0"}}),
            "3 of 4, here 1 of 2");
  const Environment environment({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MASTER_ADDR", "node0"}});
  EXPECT_TRUE(Contains(Caught("COM001", [] { RendezvousInfo::FromEnvironment(); }), "LOCAL_RANK"));
}

TEST(Rendezvous, SrunStartsOneJob) {
  const Values one_host = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},       {"SLURM_NTASKS", "2"},
                           {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"},        {"SLURM_LOCALID", "1"},
                           {"SLURM_NNODES", "2"},         {"SLURM_STEP_NUM_NODES", "1"}};
  const Environment environment(one_host);
  const auto info = RendezvousInfo::FromEnvironment();
  EXPECT_EQ(Place(info), "1 of 2, here 1 of 2");
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  EXPECT_EQ(info.prefix, "slurm77.0/");
}

TEST(Rendezvous, SrunOnSeveralHostsNeedsTheAddressOfRank0) {
  {
    const Environment environment({{"SLURM_STEP_NUM_TASKS", "11"},
                                   {"SLURM_PROCID", "9"},
                                   {"SLURM_LOCALID", "1"},
                                   {"SLURM_NODEID", "2"},
                                   {"SLURM_STEP_NUM_NODES", "3"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                                   {"MASTER_ADDR", "node0"},
                                   {"MASTER_PORT", "2345"}});
    const auto info = RendezvousInfo::FromEnvironment();
    EXPECT_EQ(Place(info), "9 of 11, here 1 of 3");
    EXPECT_EQ(info.master_addr, "node0");
    EXPECT_EQ(info.master_port, 2345);
  }
  const Environment environment(
      {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_NNODES", "2"}});
  const std::string text = Caught("COM001", [] { RendezvousInfo::FromEnvironment(); });
  EXPECT_TRUE(Contains(text, "MASTER_ADDR") && Contains(text, "srun started 4 ranks") && Contains(text, "scontrol"))
      << text;
}

TEST(Rendezvous, ABatchScriptIsOneProcess) {
  EXPECT_EQ(PlaceWith({{"SLURM_JOB_ID", "77"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_NNODES", "2"},
                       {"SLURM_PROCID", "0"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "0"}}),
            "0 of 1, here 0 of 1");
  EXPECT_EQ(PlaceWith({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}),
            "0 of 1, here 0 of 1");
}

// On other nodes than its own, mpirun starts its helper with srun, whose variables the ranks inherit.
TEST(Rendezvous, MpirunWithinSlurmCountsBeforeItsHelpers) {
  EXPECT_EQ(PlaceWith({{"OMPI_COMM_WORLD_SIZE", "8"},
                       {"OMPI_COMM_WORLD_RANK", "5"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_LOCALID", "0"},
                       {"MASTER_ADDR", "node0"}}),
            "5 of 8, here 1 of 4");
  // srun --mpi=pmi2 sets both, and PMI's say nothing of the host.
  EXPECT_EQ(PlaceWith({{"PMI_SIZE", "2"},
                       {"PMI_RANK", "1"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_STEP_NUM_NODES", "1"}}),
            "1 of 2, here 1 of 2");
}

TEST(Rendezvous, OwnVariablesCountBeforeThoseOfAStarter) {
  EXPECT_EQ(PlaceWith({{"WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}}),
            "0 of 1, here 0 of 1");
  EXPECT_EQ(PlaceWith({{"LOCAL_RANK", "0"},
                       {"LOCAL_WORLD_SIZE", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_PROCID", "3"},
                       {"SLURM_LOCALID", "1"},
                       {"MASTER_ADDR", "node0"}}),
            "3 of 4, here 0 of 1");
  const Environment environment(
      {{"RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_NODES", "1"}});
  const std::string text = Caught("COM001", [] { RendezvousInfo::FromEnvironment(); });
  EXPECT_TRUE(Contains(text, "SLURM_PROCID=3")) << text;
}

TEST(Rendezvous, AStarterThatContradictsItselfIsNamed) {
  {
    const Environment environment({{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}, {"MPI_LOCALRANKID", "0"}});
    EXPECT_TRUE(
        Contains(Caught("COM001", [] { RendezvousInfo::FromEnvironment(); }), "PMI_RANK: 2 lies outside 0 .. 1"));
  }
  const Environment environment({{"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_TRUE(Contains(Caught("COM001", [] { RendezvousInfo::FromEnvironment(); }), "SLURM_PROCID"));
}

TEST(StoreRanks, KeysCountersAndBarriers) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) {
              const auto store = ctx.store();
              EXPECT_EQ(store->rank(), ctx.rank);
              EXPECT_EQ(store->world(), 3);
              if (ctx.rank == 1) {
                std::this_thread::sleep_for(milliseconds(50));
                store->Set("plan", std::string("a\0b", 3));
                store->Set("empty", "");
              }
              EXPECT_EQ(store->Get("plan"), std::string("a\0b", 3));
              EXPECT_EQ(store->Get("empty"), "");
              EXPECT_FALSE(store->Has("nothing"));
              store->Add("sum", ctx.rank + 1);
              for (int i = 0; i < 3; ++i) store->Barrier("again", milliseconds(10'000));
              EXPECT_EQ(store->Add("sum", 0), 6);
              store->Barrier("end", milliseconds(10'000));
            }));
}

TEST(StoreRanks, TasksOfSrunMeet) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              const std::string rank = std::to_string(ctx.rank), port = std::to_string(ctx.rendezvous.master_port);
              const Environment environment({{"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_PROCID", rank.c_str()},
                                             {"SLURM_LOCALID", rank.c_str()},
                                             {"MASTER_PORT", port.c_str()}});
              RendezvousInfo info = RendezvousInfo::FromEnvironment();
              info.listen_fd = ctx.rendezvous.listen_fd;
              const auto store = Store::Connect(info);
              ASSERT_NE(store, nullptr);
              store->Add("sum", 1 + ctx.rank);
              store->Barrier("added", milliseconds(10'000));
              EXPECT_EQ(store->Add("sum", 0), 3);
              store->Barrier("end", milliseconds(10'000));
            }));
}

TEST(StoreRanks, ABarrierNamesTheMissingRanksAndAGetItsKey) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) {
              const auto store = ctx.store();
              if (ctx.rank == 0) {
                const std::string text = Caught("COM004", [&] { store->Barrier("step", milliseconds(300)); });
                EXPECT_TRUE(Contains(text, "1 of 3 ranks came to 'step' within 0.3 s; missing: rank 1, 2")) << text;
                const std::string get = Caught("COM004", [&] { store->Get("nothing", milliseconds(100)); });
                EXPECT_TRUE(Contains(get, "nobody set 'nothing' within 0.1 s")) << get;
                store->Set("done", "");
              }
              store->Get("done");
              store->Barrier("end", milliseconds(10'000));
            }));
}

// A connection whose other end is gone gives an error; a signal would end the process without a word.
TEST(StoreRanks, ALostPeerIsNoSignal) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              ctx.store();
              int ends[2];
              ASSERT_EQ(pipe(ends), 0);
              close(ends[0]);
              EXPECT_EQ(write(ends[1], "x", 1), -1);
              EXPECT_EQ(errno, EPIPE);
              ctx.store()->Barrier("end", milliseconds(10'000));
            }));
}

// Rank 0 names the missing rank. The store ends with it, so another rank may see either that or the same time-out.
TEST(StoreRanks, ARankThatNeverJoinsIsNamed) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) {
              if (ctx.rank == 1) return;
              ctx.rendezvous.timeout = milliseconds(700);
              if (ctx.rank == 0) {
                const std::string text = Caught("COM004", [&] { ctx.store(); });
                EXPECT_TRUE(Contains(text, "2 of 3 ranks came to 'joined'") && Contains(text, "missing: rank 1"))
                    << text;
                return;
              }
              try {
                ctx.store();
                ADD_FAILURE() << "rank 2 joined a job that lacks rank 1";
              } catch (const Error& error) {
                EXPECT_TRUE(error.id() == "COM004" || error.id() == "COM005") << error.what();
              }
            }));
}

TEST(StoreErrors, APortInUseIsSaidWithItsNumber) {
  EXPECT_EQ("", RunRanks(1, 60, [](RankContext&) {
              const int fd = socket(AF_INET6, SOCK_STREAM, 0);
              sockaddr_in6 address{};
              address.sin6_family = AF_INET6;
              address.sin6_addr = in6addr_any;
              socklen_t length = sizeof address;
              ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
              ASSERT_EQ(listen(fd, 1), 0);
              getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
              RendezvousInfo info;
              info.world = 2;
              info.master_port = ntohs(address.sin6_port);
              info.timeout = milliseconds(2000);
              const std::string text = Caught("COM002", [&] { Store::Connect(info); });
              EXPECT_TRUE(Contains(text, "port " + std::to_string(info.master_port) + " is in use")) << text;
              EXPECT_TRUE(Contains(text, "--master_port")) << text;
            }));
}

TEST(StoreErrors, AnUnreachableMasterIsSaidWithHostPortAndSeconds) {
  EXPECT_EQ("", RunRanks(1, 60, [](RankContext&) {
              RendezvousInfo info;
              info.rank = 1;
              info.world = 2;
              info.master_port = 1;  // nobody listens there
              info.timeout = milliseconds(1200);
              const std::string text = Caught("COM003", [&] { Store::Connect(info); });
              EXPECT_TRUE(Contains(text, "rank 1 of 2 could not reach rank 0 at 127.0.0.1 port 1 within")) << text;
            }));
}

TEST(StoreErrors, ALostStoreIsNoHang) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              const auto store = ctx.store();
              if (ctx.rank == 0) return std::this_thread::sleep_for(milliseconds(300));
              const std::string text = Caught("COM005", [&] { store->Get("never", milliseconds(20'000)); });
              EXPECT_TRUE(Contains(text, "'never'")) << text;
            }));
}

TEST(Nccl, AProgramWithoutCudaSaysSo) {
#ifdef TRIREME_HAS_CUDA
  GTEST_SKIP() << "built with CUDA";
#else
  Caught("COM017", [] { MakeNcclCommunicator(nullptr, {0}, 0, "dp0"); });
#endif
}

}  // namespace
}  // namespace trireme::test
