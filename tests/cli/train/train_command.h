// A tiny job for the command-line tests: config, text, tokens in a folder of their own, and the words that train on
// them.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/launcher/command.h"

namespace trireme::testing {

class TinyJob {
 public:
  TinyJob();  // makes config.json (ZeRO-2), text.bin and text.idx (byte tokeniser)

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  void WriteConfig(const std::string& name, const std::string& text) const;

  // launch --cpu --num_gpus RANKS train ... with the tiny model; `more` comes last.
  std::vector<std::string> Train(int ranks, const std::vector<std::string>& more,
                                 const std::string& config = "config.json") const;

 private:
  TempFolder folder_;
};

extern const std::string kTinyConfig;

}  // namespace trireme::testing
