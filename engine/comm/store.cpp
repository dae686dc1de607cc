#include "engine/comm/store.h"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/comm/store_impl.h"

namespace trireme {
namespace {

// The connections below write without asking for an error instead of SIGPIPE: a peer that ends at the wrong moment
// would end this process without a word. A handler of the caller's stays.
void IgnoreBrokenPipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

using std::chrono::milliseconds;

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

std::string Address(const RendezvousInfo& info) { return fmt::format("{}:{}", info.master_addr, info.master_port); }

std::string FirstLine(const char* text) {
  const std::string_view all(text);
  return std::string(all.substr(0, all.find('\n')));
}

[[noreturn]] void ThrowConnect(const RendezvousInfo& info, bool server, const char* text, double seconds) {
  const std::string reason = FirstLine(text);
  if (server && (reason.find("EADDRINUSE") != std::string::npos || reason.find("in use") != std::string::npos)) {
    throw Error(ErrorCode::kCommunication, "COM002",
                fmt::format("port {} is in use on this host, so rank 0 cannot open the rendezvous of {} ranks",
                            info.master_port, info.world),
                Address(info),
                fmt::format("give another --master_port (or MASTER_PORT), or end the job that holds the port; "
                            "`ss -ltnp 'sport = :{}'` shows it",
                            info.master_port));
  }
  if (server) {
    throw Error(ErrorCode::kCommunication, "COM002",
                fmt::format("rank 0 cannot open port {}: {}", info.master_port, reason), Address(info),
                "give a --master_port between 1024 and 65535 that is free");
  }
  throw Error(
      ErrorCode::kCommunication, "COM003",
      fmt::format("rank {} of {} could not reach rank 0 at {} port {} within {:.1f} s: {}", info.rank, info.world,
                  info.master_addr, info.master_port, seconds, reason),
      Address(info),
      "check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are equal on every rank, and that no firewall closes "
      "the port");
}

// Calls `run`; whatever the store throws becomes COM005.
template <typename Function>
auto Guard(const Store::Impl& impl, const std::string& key, Function run) {
  try {
    return run();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCommunication, "COM005",
                fmt::format("the rendezvous store failed at key '{}': {}", key, FirstLine(error.what())),
                fmt::format("{}, rank {}", Address(impl.info), impl.info.rank),
                "rank 0 has most likely ended: look at its log first");
  }
}

// c10d prints a stack trace for each lost connection, which we report ourselves; TORCH_CPP_LOG_LEVEL brings it back.
void QuietLibTorch() {
  if (!env::Text("TORCH_CPP_LOG_LEVEL"))
    FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, c10::GLOG_FATAL);
}

std::vector<uint8_t> ToBytes(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

std::shared_ptr<Store> Store::Connect(const RendezvousInfo& info) {
  TRIREME_CHECK(info.world >= 1 && info.rank >= 0 && info.rank < info.world,
                fmt::format("rank {} of {}", info.rank, info.world));
  if (info.world == 1) return nullptr;
  IgnoreBrokenPipes();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = info.rank == 0 && info.hosts_store;
  options.numWorkers = info.world;
  options.waitWorkers = false;  // waited for below, by rank, so that the message can name those that are missing
  options.timeout = info.timeout;
  if (options.isServer) options.masterListenFd = info.listen_fd;
  QuietLibTorch();
  auto impl = std::make_unique<Impl>();
  impl->info = info;
  const auto begin = std::chrono::steady_clock::now();
  try {
    impl->tcp = c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  } catch (const std::exception& error) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    ThrowConnect(info, options.isServer, error.what(), waited.count());
  }
  std::shared_ptr<Store> store(new Store(std::move(impl)));
  store->Barrier("joined", info.timeout);
  return store;
}

int Store::rank() const { return impl_->info.rank; }
int Store::world() const { return impl_->info.world; }
milliseconds Store::timeout() const { return impl_->info.timeout; }
const RendezvousInfo& Store::info() const { return impl_->info; }

void Store::Set(const std::string& key, std::string_view bytes) {
  Guard(*impl_, key, [&] { impl_->tcp->set(impl_->Key(key), ToBytes(bytes)); });
}

std::string Store::Get(const std::string& key) { return Get(key, timeout()); }

std::string Store::Get(const std::string& key, milliseconds timeout) {
  Wait({key}, timeout);
  const auto bytes = Guard(*impl_, key, [&] { return impl_->tcp->get(impl_->Key(key)); });
  return {bytes.begin(), bytes.end()};
}

bool Store::Has(const std::string& key) {
  return Guard(*impl_, key, [&] { return impl_->tcp->check({impl_->Key(key)}); });
}

int64_t Store::Add(const std::string& key, int64_t value) {
  return Guard(*impl_, key, [&] { return impl_->tcp->add(impl_->Key(key), value); });
}

// Asks again and again: TCPStore's own wait would keep its connection busy, and every other thread out, until the end.
void Store::Wait(const std::vector<std::string>& keys, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  size_t next = 0;
  milliseconds pause(1);
  while (true) {
    while (next < keys.size() && Has(keys[next])) ++next;
    if (next == keys.size()) return;
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
  throw Error(
      ErrorCode::kCommunication, "COM004", fmt::format("nobody set '{}' within {:.1f} s", keys[next], Seconds(timeout)),
      fmt::format("{}, rank {}", Address(impl_->info), rank()), "look at the log of the rank that should have set it");
}

void Store::Barrier(const std::string& name, milliseconds timeout) {
  const std::string prefix = fmt::format("barrier/{}/{}/", name, NextGeneration("barrier/" + name));
  Set(prefix + std::to_string(rank()), "");
  std::vector<std::string> keys;
  for (int r = 0; r < world(); ++r) keys.push_back(prefix + std::to_string(r));
  std::vector<std::string> left;
  for (int r = 1; r < world(); ++r) left.push_back(prefix + "left/" + std::to_string(r));
  try {
    Wait(keys, timeout);
    if (rank() > 0) return Set(left[rank() - 1], "");
  } catch (const Error& error) {
    if (error.id() != "COM004") throw;
    std::vector<int> missing;
    for (int r = 0; r < world(); ++r) {
      if (!Has(keys[r])) missing.push_back(r);
    }
    throw Error(ErrorCode::kCommunication, "COM004",
                fmt::format("{} of {} ranks came to '{}' within {:.1f} s; missing: rank {}", world() - missing.size(),
                            world(), name, Seconds(timeout), fmt::join(missing, ", ")),
                fmt::format("{}, rank {}", Address(impl_->info), rank()), "look at the logs of the missing ranks");
  }
  try {
    Wait(left, timeout);    // rank 0 serves the store: it leaves last, so that it may end after a barrier
  } catch (const Error&) {  // all had come; one that ended since will be noticed elsewhere
  }
}

int64_t Store::NextGeneration(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->generations[name]++;
}

}  // namespace trireme
