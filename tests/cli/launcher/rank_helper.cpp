// A rank for tests of the launcher. Each argument "RANKS:ACTION[=VALUE]" is done in order by the ranks named ("*": all,
// "2", "!2": all but 2):
//   print=TEXT eprint=TEXT (a line to stdout, stderr), write=TEXT (no line end), flood=N (N lines of 100 bytes),
//   env=NAME, words (all arguments), sleep=MS, exit=N, kill=S (itself), ignore=S, onterm=N (exit N at SIGTERM), child
//   (a process that ignores SIGTERM), daemon (the same, in a session of its own, without a parent), stdin (is it
//   empty?), fds (open descriptors)
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

extern char** environ;

namespace {

int g_exit_at_term = 0;

void AtTerm(int) { _exit(g_exit_at_term); }

[[noreturn]] void IdleForever() {
  std::signal(SIGTERM, SIG_IGN);
  for (;;) pause();
}

void CountDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = -1;  // this folder's own descriptor does not count
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  std::printf("descriptors %d\n", count);
}

void Do(const std::string& action, const std::string& value, int argc, char** argv) {
  const int number = std::atoi(value.c_str());
  if (action == "print") std::printf("%s\n", value.c_str());
  if (action == "write") std::printf("%s", value.c_str());
  if (action == "eprint") std::fprintf(stderr, "%s\n", value.c_str());
  if (action == "flood") {
    for (int i = 0; i < number; ++i) std::printf("%099d\n", i);
  }
  if (action == "env")
    std::printf("%s=%s\n", value.c_str(),
                std::getenv(value.c_str()) == nullptr ? "<unset>" : std::getenv(value.c_str()));
  if (action == "words") {
    for (int i = 1; i < argc; ++i) std::printf("word %d: <%s>\n", i, argv[i]);
  }
  if (action == "stdin") std::printf("stdin %s\n", std::getchar() == EOF ? "empty" : "not empty");
  if (action == "fds") CountDescriptors();
  std::fflush(nullptr);
  if (action == "sleep") usleep(static_cast<useconds_t>(number) * 1000);
  if (action == "exit") _exit(number);
  if (action == "kill") {
    std::signal(number, SIG_DFL);  // sanitizers handle some
    kill(getpid(), number);
  }
  if (action == "ignore") std::signal(number, SIG_IGN);
  if (action == "onterm") {
    g_exit_at_term = number;
    std::signal(SIGTERM, AtTerm);
  }
  if (action == "child" && fork() == 0) IdleForever();
  if (action == "daemon") {
    const pid_t between = fork();
    if (between == 0) {
      setsid();
      if (fork() == 0) IdleForever();
      _exit(0);
    }
    waitpid(between, nullptr, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank_text = std::getenv("RANK");
  const std::string rank = rank_text == nullptr ? "" : rank_text;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t colon = word.find(':');
    if (colon == std::string::npos) continue;
    const std::string who = word.substr(0, colon);
    const bool mine = who == "*" || who == rank || (who[0] == '!' && who.substr(1) != rank);
    const size_t equals = word.find('=');
    if (mine)
      Do(word.substr(colon + 1, equals - colon - (equals == std::string::npos ? 0 : 1)),
         equals == std::string::npos ? "" : word.substr(equals + 1), argc, argv);
  }
  return 0;
}
