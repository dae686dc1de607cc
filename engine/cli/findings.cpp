#include "engine/cli/findings.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::cli {
namespace {

constexpr Health kAll[] = {Health::kOk, Health::kWarning, Health::kProblem};
constexpr std::string_view kMark = "finding";

int64_t Count(const Findings& findings, Health health) {
  return std::ranges::count(findings, health, &Finding::health);
}

std::string OneField(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

}  // namespace

std::string_view Name(Health health) {
  return health == Health::kOk ? "ok" : health == Health::kWarning ? "warning" : "problem";
}

void Append(Findings& findings, Findings more) {
  findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::string FindingsText(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text += fmt::format("{:<8} {:<14} {}{}\n", Name(f.health), f.topic, f.what,
                        f.where.empty() ? "" : fmt::format(" ({})", f.where));
    if (!f.fix.empty()) text += fmt::format("{:<23} fix: {}\n", "", f.fix);
  }
  const int64_t problems = Count(findings, Health::kProblem), warnings = Count(findings, Health::kWarning);
  return text + fmt::format("\n{} findings: {} problem{}, {} warning{}\n", findings.size(), problems,
                            problems == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
}

std::string FindingsJson(const Findings& findings) {
  nlohmann::ordered_json json;
  json["ok"] = Count(findings, Health::kProblem) == 0;
  json["problems"] = Count(findings, Health::kProblem);
  json["warnings"] = Count(findings, Health::kWarning);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    json["findings"].push_back(
        {{"status", Name(f.health)}, {"topic", f.topic}, {"what", f.what}, {"where", f.where}, {"fix", f.fix}});
  }
  // Names of devices and files may hold any bytes.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int ExitCodeOf(const Findings& findings) {
  return Count(findings, Health::kProblem) == 0 ? 0 : ExitCode(ErrorCode::kCheckFailed);
}

std::string FindingLines(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", kMark, Name(f.health), OneField(f.topic), OneField(f.what),
                        OneField(f.where), OneField(f.fix));
  }
  return text;
}

Findings ReadFindingLines(std::string_view text) {
  Findings findings;
  for (const std::string& line : Split(text, '\n')) {
    std::vector<std::string> fields = Split(line, '\t');
    if (fields.size() != 6 || fields[0] != kMark) continue;
    const auto* health = std::ranges::find_if(kAll, [&](Health h) { return Name(h) == fields[1]; });
    if (health == std::end(kAll)) continue;
    findings.push_back(
        {*health, std::move(fields[2]), std::move(fields[3]), std::move(fields[4]), std::move(fields[5])});
  }
  return findings;
}

}  // namespace trireme::cli
