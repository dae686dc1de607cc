// Runs the trireme program as a user would, and sees what it leaves behind.
//   Outcome o = RunTrireme({"launch", "--num_gpus", "2", kHelper, "*:env=RANK"});   // o.code, o.out, o.err
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::testing {

extern const std::string kTrireme;  // build/bin/trireme
extern const std::string kHelper;   // rank_helper.cpp
extern const std::string kEngine;   // fake_engine.cpp

struct Outcome {
  int code = -1;  // 128 + S for signal S
  std::string out, err;
  double seconds = 0;
};

// A folder that goes away with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A started command. All its processes carry a mark of their own in the environment, by which Left() finds them
// wherever they went.
class Command {
 public:
  Command(const std::string& program, const std::vector<std::string>& words,
          const std::map<std::string, std::string>& environment = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  // Waits until `text` has come out on stdout or stderr; false after 20 s.
  bool WaitFor(const std::string& text);
  Outcome Wait();
  // Processes of the command that still run, after waiting up to `seconds` for their end.
  std::vector<pid_t> Left(double seconds) const;
  std::vector<pid_t> Running() const;

 private:
  bool Pump(int timeout_ms);
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::string mark_;
  double started_ = 0;
  Outcome outcome_;
  TempFolder temp_;  // TMPDIR of the command, unless the test gives one
};

Outcome RunTrireme(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment = {});

}  // namespace trireme::testing
