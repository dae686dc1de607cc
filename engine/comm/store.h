// Store: the rendezvous of a job, a key-value server on rank 0 that every rank reaches over TCP.
//   auto store = Store::Connect(RendezvousInfo::FromEnvironment());  // nullptr in a job of one process
//   store->Set("plan/hash", bytes); store->Barrier("ready", std::chrono::seconds(60));
// Safe to use from several threads, but a call that waits holds the others up.
// Errors: Error{kCommunication} COM002..COM005 with host, port, key, missing ranks and the seconds waited.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct RendezvousInfo {
  int rank = 0;
  int local_rank = 0;  // rank within the host
  int world = 1;
  int local_world = 1;  // ranks on this host
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::chrono::milliseconds timeout{300'000};
  bool hosts_store = true;       // rank 0 opens the port; false where the launcher's agent has opened it (torchrun)
  std::string prefix;            // of every key, so that a restarted job does not read the keys of its predecessor
  std::optional<int> listen_fd;  // rank 0: a socket that already listens on master_port; the store takes it over

  // Reads RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and torchrun's
  // TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RESTART_COUNT. Without WORLD_SIZE, what mpirun (Open MPI, MPICH,
  // Intel MPI) or srun say of this process; on one host they need no MASTER_ADDR and MASTER_PORT. None set: rank 0
  // of 1. Throws Error{kEnvironment} COM001 naming what is missing or wrong.
  static RendezvousInfo FromEnvironment();
};

class Store {
 public:
  // Returns when all ranks have joined. nullptr if world is 1. From here on SIGPIPE is ignored where its action was the
  // default: a lost peer is an error, not the end of the process.
  static std::shared_ptr<Store> Connect(const RendezvousInfo& info);
  ~Store();

  int rank() const;
  int world() const;
  std::chrono::milliseconds timeout() const;  // the one given to Connect; default of the waits below
  const RendezvousInfo& info() const;

  void Set(const std::string& key, std::string_view bytes);
  std::string Get(const std::string& key);  // waits for the key
  std::string Get(const std::string& key, std::chrono::milliseconds timeout);
  bool Has(const std::string& key);                    // does not wait
  int64_t Add(const std::string& key, int64_t value);  // returns the new value; the key starts at 0
  void Wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  // All ranks of the world call it with the same name; a name may be used again. A time-out names the missing ranks.
  // Rank 0 leaves last: a job whose last call is a barrier may end at once, though the store ends with rank 0.
  void Barrier(const std::string& name, std::chrono::milliseconds timeout);
  // How often this rank asked for `name` before: 0, 1, ... Equal on all ranks that ask in the same order.
  int64_t NextGeneration(const std::string& name);

  struct Impl;
  Impl& impl() { return *impl_; }  // for gloo.cpp

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
