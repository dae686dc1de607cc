#include "launcher/port.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultPort = 29500;   // DeepSpeed's and PyTorch's
constexpr int kLastAutoPort = 29999;  // below the range from which the kernel gives ports to outgoing connections

// -1 if another job of Trireme on this machine holds the number.
int LockPort(int port) {
  const int lock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("trireme-port-{}", port);  // behind a zero byte: no file
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (lock >= 0 && bind(lock, reinterpret_cast<const sockaddr*>(&address), size) == 0) return lock;
  if (lock >= 0) close(lock);
  return -1;
}

bool CanBind(int family, const sockaddr* address, socklen_t size) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // no such address family here
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // connections of an ended job in TIME_WAIT do not count
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  const bool bound = bind(fd, address, size) == 0 || (errno != EADDRINUSE && errno != EACCES);
  close(fd);
  return bound;
}

// Inode of the socket that listens on `port`, "" if there is none.
std::string ListenerInode(const char* table, int port) {
  std::ifstream in(table);
  std::string line;
  std::getline(in, line);  // header
  const std::string suffix = fmt::format(":{:04X}", port);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmit, uid, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmit >> uid >> timeout >> inode;
    if (local.ends_with(suffix) && state == "0A") return inode;
  }
  return "";
}

bool HoldsSocket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (const fs::directory_entry& fd : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(fd.path(), error) == link) return true;
  }
  return false;
}

}  // namespace

RendezvousPort::~RendezvousPort() {
  if (lock_ >= 0) close(lock_);
}

RendezvousPort::RendezvousPort(RendezvousPort&& other) noexcept : port_(other.port_), lock_(other.lock_) {
  other.lock_ = -1;
}

bool PortIsFree(int port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  return CanBind(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof(v4)) &&
         CanBind(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
}

std::string PortOwner(int port) {
  std::string inode = ListenerInode("/proc/net/tcp", port);
  if (inode.empty()) inode = ListenerInode("/proc/net/tcp6", port);
  if (inode.empty()) return "";
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || !HoldsSocket(process.path(), link)) continue;
    std::string name;
    std::getline(std::ifstream(process.path() / "comm") >> std::ws, name);
    return fmt::format("process {} ({})", pid, name);
  }
  return "";
}

RendezvousPort ChoosePort(std::optional<int64_t> asked) {
  if (asked && *asked != 0) {
    const int port = static_cast<int>(*asked);
    const int lock = LockPort(port);
    if (lock >= 0 && PortIsFree(port)) return {port, lock};
    if (lock >= 0) close(lock);
    std::string owner = PortOwner(port);
    if (owner.empty()) owner = lock < 0 ? "another job of trireme launch" : "a process that this user cannot see";
    throw Error(ErrorCode::kEnvironment, "LCH030", fmt::format("port {} is taken by {}", port, owner), "--master_port",
                "end that process, give another port, or leave the flag out: then a free one is chosen");
  }
  for (int port = kDefaultPort + (asked ? 1 : 0); port <= kLastAutoPort; ++port) {
    const int lock = LockPort(port);
    if (lock >= 0 && PortIsFree(port)) return {port, lock};
    if (lock >= 0) close(lock);
  }
  throw Error(ErrorCode::kEnvironment, "LCH030",
              fmt::format("no port from {} to {} is free", kDefaultPort, kLastAutoPort), "",
              "end old jobs, or give a free port with --master_port");
}

}  // namespace trireme::launcher
