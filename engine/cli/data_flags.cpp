#include "engine/cli/data_flags.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::cli {

Flags::Flags(const std::vector<std::string>& arguments, const std::map<std::string, int>& known, std::string command)
    : command_(std::move(command)) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) {
      words_.push_back(arguments[i]);
      continue;
    }
    const size_t equals = arguments[i].find('=');
    std::string name = arguments[i].substr(0, equals);
    std::ranges::replace(name, '_', '-');
    const auto found = known.find(name);
    if (found == known.end()) FailUnknown(name, known);
    std::vector<std::string>& values = values_[name];
    if (!values.empty() && found->second != kMany) Fail(name + " is given twice", "give it once");
    if (found->second == kSwitch) {
      if (equals != std::string::npos) Fail(name + " takes no value", "write " + name);
      values.emplace_back();
      continue;
    }
    if (equals != std::string::npos) {
      values.push_back(arguments[i].substr(equals + 1));
      continue;
    }
    const size_t before = values.size();
    while (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      values.push_back(arguments[++i]);
      if (found->second != kMany) break;
    }
    if (values.size() == before) Fail(name + " has no value", "write " + name + " VALUE");
  }
}

const std::vector<std::string>* Flags::Values(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::string Flags::Text(const std::string& name, const std::string& absent) const {
  return Values(name) ? Values(name)->front() : absent;
}

const std::vector<std::string>& Flags::Required(const std::string& name) const {
  if (Values(name) == nullptr) Fail(name + " is missing", "`trireme data --help` lists the flags");
  return *Values(name);
}

std::optional<int64_t> Flags::Integer(const std::string& name, int64_t low, int64_t high) const {
  if (Values(name) == nullptr) return std::nullopt;
  const std::string& text = Values(name)->front();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    Fail(fmt::format("{} {} is not an integer from {} to {}", name, text, low, high), "correct the value");
  }
  return value;
}

const std::string& Flags::Prefix() const {
  if (words_.size() == 1) return words_.front();
  Fail(words_.empty() ? "the PREFIX of the dataset is missing"
                      : fmt::format("one PREFIX is wanted, {} words are given", words_.size()),
       "name the .bin/.idx pair without its endings, for example corpus/text");
}

void Flags::ExpectNoWords() const {
  if (!words_.empty())
    Fail(fmt::format("\"{}\" belongs to no flag", words_.front()), "`trireme data --help` lists the flags");
}

void Flags::Fail(const std::string& what, const std::string& fix) const {
  throw Error(ErrorCode::kUsage, "DAT015", what, command_, fix);
}

void Flags::FailUnknown(const std::string& name, const std::map<std::string, int>& known) const {
  std::vector<std::string> names;
  for (const auto& [flag, count] : known) names.push_back(flag);
  const auto near = Suggest(name, names);
  Fail("unknown flag " + name, near ? "did you mean " + *near + "?" : "known: " + Join(names, " "));
}

DataProgress::DataProgress(std::string what, std::string unit, double scale)
    : what_(std::move(what)), unit_(std::move(unit)), scale_(scale), terminal_(::isatty(STDERR_FILENO) != 0) {}

void DataProgress::Update(int64_t done, int64_t total) {
  const double seconds = Seconds();
  if (done < total && seconds - shown_ < (terminal_ ? 0.2 : 5.0)) return;
  shown_ = seconds;
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-6);
  const double left = static_cast<double>(total - done) / std::max(rate, 1.0);
  fmt::print(stderr, "{}{}: {:.1f} of {:.1f} {}, {:.1f} {}/s, ETA {}{}", terminal_ ? "\r" : "", what_,
             static_cast<double>(done) / scale_, static_cast<double>(total) / scale_, unit_, rate / scale_, unit_,
             FormatDuration(left), terminal_ ? "\033[K" : "\n");
  if (terminal_ && done == total) fmt::print(stderr, "\n");
  std::fflush(stderr);
}

double DataProgress::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace trireme::cli
