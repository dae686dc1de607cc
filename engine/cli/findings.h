// What `trireme doctor` found: data until it is printed. The engine's part of them travels as lines of text.
//   fmt::print("{}", FindingsText(findings));  return ExitCodeOf(findings);
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

enum class Health : uint8_t { kOk, kWarning, kProblem };
std::string_view Name(Health health);  // "ok", "warning", "problem"

struct Finding {
  Health health = Health::kOk;
  std::string topic;  // "cpu", "gpu 0", "limits", ...
  std::string what;   // with the numbers
  std::string where;  // file, device or variable
  std::string fix;    // "" where nothing is to be done
  bool operator==(const Finding&) const = default;
};
using Findings = std::vector<Finding>;

void Append(Findings& findings, Findings more);

std::string FindingsText(const Findings& findings);
std::string FindingsJson(const Findings& findings);  // one object: ok, problems, warnings, findings
int ExitCodeOf(const Findings& findings);            // 1 if there is a problem

// One finding a line, fields apart by tabs, behind a word of their own: what else a program prints is left out.
std::string FindingLines(const Findings& findings);
Findings ReadFindingLines(std::string_view text);

}  // namespace trireme::cli
