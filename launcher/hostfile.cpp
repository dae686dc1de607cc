#include <arpa/inet.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "engine/base/error.h"
#include "launcher/devices.h"
#include "parsers/diagnostics.h"
#include "parsers/hostfile.h"

namespace trireme::launcher {

HostSlots ReadHostfile(const std::filesystem::path& path, const std::vector<std::string>& own_names) {
  Diagnostics diagnostics;
  const std::vector<Host> hosts = trireme::ReadHostfile(path, diagnostics);
  diagnostics.ThrowIfErrors();
  if (hosts.size() > 1) {
    throw Error(ErrorCode::kConfig, "LCH020",
                fmt::format("names {} hosts, this version starts the ranks of one machine", hosts.size()),
                path.string(),
                "keep one host, or start `trireme train` through srun, mpirun or torchrun, one process a GPU, with "
                "MASTER_ADDR set to the host of rank 0");
  }
  if (std::find(own_names.begin(), own_names.end(), hosts[0].name) == own_names.end()) {
    throw Error(ErrorCode::kConfig, "LCH021",
                fmt::format("host {} is not this machine ({})", hosts[0].name, own_names.front()), path.string(),
                "start the job on that host, or write localhost");
  }
  return {hosts[0].name, hosts[0].slots};
}

std::vector<std::string> OwnNames() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::vector<std::string> names = {name.data(), "localhost", "127.0.0.1", "::1"};
  const std::string whole = names[0];
  if (const size_t dot = whole.find('.'); dot != std::string::npos) names.push_back(whole.substr(0, dot));
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return names;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* address = nullptr;
    if (entry->ifa_addr->sa_family == AF_INET)
      address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (entry->ifa_addr->sa_family == AF_INET6)
      address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    if (address != nullptr && inet_ntop(entry->ifa_addr->sa_family, address, text.data(), text.size()) != nullptr)
      names.emplace_back(text.data());
  }
  return names;
}

}  // namespace trireme::launcher
