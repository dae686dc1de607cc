#include "tests/support/run_ranks.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "engine/comm/backends.h"

namespace trireme::test {
namespace {

// A socket that listens on a free port of the loopback interface: rank 0's store takes it over, so nobody can come
// between.
int Listen(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 128) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error(fmt::format("cannot listen on the loopback interface: {}", std::strerror(errno)));
  }
  port = ntohs(address.sin_port);
  return fd;
}

// In a child: takes the place of GoogleTest's printer.
class Collector : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    text += fmt::format("{}:{}: {}\n", result.file_name() ? result.file_name() : "", result.line_number(),
                        result.message());
  }
  std::string text;
};

void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

[[noreturn]] void RunChild(RankContext context, int timeout_s, int out, const std::function<void(RankContext&)>& body) {
  alarm(static_cast<unsigned>(timeout_s));
  at::set_num_threads(1);
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* collector = new Collector;
  listeners.Append(collector);
  std::string text;
  try {
    body(context);
  } catch (const std::exception& error) {
    text = std::string(error.what()) + "\n";
  } catch (...) {
    text = "threw something that is no std::exception\n";
  }
  text = collector->text + text;
  WriteAll(out, text);
  _exit(text.empty() ? 0 : 1);  // no destructors of the parent's test program here
}

struct Child {
  pid_t pid;
  int in;
  std::string text;
};

void ReadAll(std::vector<Child>& children) {
  std::vector<pollfd> open;
  for (const Child& child : children) open.push_back({child.in, POLLIN, 0});
  for (size_t num_open = open.size(); num_open > 0;) {
    if (poll(open.data(), open.size(), -1) < 0) continue;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(open[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        children[i].text.append(buffer, static_cast<size_t>(n));
      } else {
        close(open[i].fd);
        open[i].fd = -1;
        --num_open;
      }
    }
  }
}

std::string Verdict(int rank, const Child& child) {
  int status = 0;
  waitpid(child.pid, &status, 0);
  std::string text = child.text.empty() ? "" : fmt::format("rank {}: {}", rank, child.text);
  if (WIFSIGNALED(status)) {
    text += fmt::format("rank {} killed by signal {} ({})\n", rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0 && child.text.empty()) {
    text += fmt::format("rank {} left with status {}\n", rank, WEXITSTATUS(status));
  }
  return text;
}

}  // namespace

std::shared_ptr<Store> RankContext::store() {
  if (!store_) store_ = Store::Connect(rendezvous);
  return store_;
}

std::unique_ptr<Communicator> RankContext::MakeGloo(const std::string& name, std::chrono::milliseconds timeout) {
  std::vector<int> all(world);
  std::iota(all.begin(), all.end(), 0);
  return MakeGlooCommunicator(store(), all, rank, name, timeout);
}

std::string RunRanks(int world, int timeout_s, const std::function<void(RankContext&)>& body) {
  const auto tasks = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  if (tasks != 1) return fmt::format("RunRanks must fork before any thread exists, and there are {}\n", tasks);
  int port = 0;
  const int listener = Listen(port);
  std::fflush(nullptr);
  std::vector<Child> children;
  for (int r = 0; r < world; ++r) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("no process");
    if (pid == 0) {
      for (const Child& child : children) close(child.in);
      close(ends[0]);
      if (r != 0) close(listener);
      RankContext context;
      context.rank = r;
      context.world = world;
      context.rendezvous.rank = context.rendezvous.local_rank = r;
      context.rendezvous.world = world;
      context.rendezvous.master_port = port;
      context.rendezvous.timeout = std::chrono::seconds(timeout_s);
      if (r == 0) context.rendezvous.listen_fd = listener;
      RunChild(std::move(context), timeout_s, ends[1], body);
    }
    close(ends[1]);
    children.push_back({pid, ends[0], ""});
  }
  close(listener);
  ReadAll(children);
  std::string text;
  for (int r = 0; r < world; ++r) text += Verdict(r, children[r]);
  return text;
}

}  // namespace trireme::test
