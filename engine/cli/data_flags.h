// What the actions of `trireme data` share: their command lines and the line that shows their progress.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cli {

constexpr int kSwitch = 0;  // no value
constexpr int kOne = 1;
constexpr int kMany = -1;  // one value or more, up to the next flag

// --name value..., --name=value, and words without a flag; hyphens and underscores mean the same. Throws Error{kUsage,
// DAT015}.
class Flags {
 public:
  // known: flag -> number of values (kSwitch, kOne or kMany).
  Flags(const std::vector<std::string>& arguments, const std::map<std::string, int>& known, std::string command);

  bool Given(const std::string& name) const { return Values(name) != nullptr; }
  const std::vector<std::string>* Values(const std::string& name) const;
  std::string Text(const std::string& name, const std::string& absent) const;
  const std::vector<std::string>& Required(const std::string& name) const;
  std::optional<int64_t> Integer(const std::string& name, int64_t low, int64_t high) const;
  const std::string& Prefix() const;  // the one word that is no flag
  void ExpectNoWords() const;
  [[noreturn]] void Fail(const std::string& what, const std::string& fix) const;

 private:
  [[noreturn]] void FailUnknown(const std::string& name, const std::map<std::string, int>& known) const;

  std::string command_;
  std::map<std::string, std::vector<std::string>> values_;
  std::vector<std::string> words_;
};

// One line on stderr, rewritten in place on a terminal; elsewhere one line every 5 seconds.
class DataProgress {
 public:
  // `unit`: what `done` and `total` count once divided by `scale`, such as "MB" and 1e6.
  DataProgress(std::string what, std::string unit, double scale);
  void Update(int64_t done, int64_t total);
  double Seconds() const;

 private:
  const std::string what_, unit_;
  const double scale_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const bool terminal_;
  double shown_ = 0;
};

// data_build.cpp
int RunDataBuild(const std::vector<std::string>& arguments);
int RunTrainTokenizer(const std::vector<std::string>& arguments);

}  // namespace trireme::cli
