// The rendezvous port of a job on this machine, kept apart from the ports of other jobs of Trireme for as long as the
// launcher lives.
//   const RendezvousPort port = ChoosePort(options.master_port);   // 29500, or another one where that is taken
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::launcher {

// Holds a lock on the number (an abstract Unix socket "trireme-port-N", which leaves no file), not the port itself:
// rank 0 binds that. So two jobs started in the same instant get two ports, and nothing is left when the launcher ends,
// however it ends.
class RendezvousPort {
 public:
  RendezvousPort(int port, int lock) : port_(port), lock_(lock) {}
  ~RendezvousPort();
  RendezvousPort(RendezvousPort&& other) noexcept;
  RendezvousPort& operator=(RendezvousPort&&) = delete;

  int port() const { return port_; }

 private:
  int port_;
  int lock_;
};

// `asked`: unset: 29500 if free, else the next free one above; 0: a free one; else that one. Throws Error{kEnvironment,
// LCH030} if the asked port is taken, with the process that listens on it if it can be seen.
RendezvousPort ChoosePort(std::optional<int64_t> asked);

bool PortIsFree(int port);
std::string PortOwner(int port);  // "process 4711 (trireme-engine)"; "" if unknown

}  // namespace trireme::launcher
