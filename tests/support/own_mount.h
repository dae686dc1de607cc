// A test in a process of its own, with file systems of its own: a full disk without harm to the machine's.
#pragma once
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <functional>
#include <string>

namespace trireme::testing {

// Runs `body` in a child of its own; it returns "" or what went wrong, or "skip".
inline std::string InChild(const std::function<std::string()>& body, bool& skipped) {
  constexpr int kSkipped = 77;
  int ends[2];
  if (::pipe(ends) != 0) return "pipe failed";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = error.what();
    }
    if (text == "skip") ::_exit(kSkipped);
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  skipped = WIFEXITED(status) && WEXITSTATUS(status) == kSkipped;
  if (!skipped && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) return text + " (the child died)";
  return text;
}

// A mount of our own needs no privilege where the kernel allows user namespaces.
inline bool OwnMountNamespace() {
  if (::unshare(CLONE_NEWNS) != 0) {
    const std::string user = "0 " + std::to_string(::getuid()) + " 1", group = "0 " + std::to_string(::getgid()) + " 1";
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

}  // namespace trireme::testing
