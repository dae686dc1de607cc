#include "parsers/diagnostics.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "parsers/problems_error.h"

namespace trireme {
namespace {

// Bytes of what a file says that go into a message.
constexpr size_t kLongestKey = 200, kLongestText = 4000;

std::string Where(const Problem& problem) {
  std::string text = problem.position.file;
  if (problem.position.line > 0) text += ":" + std::to_string(problem.position.line);
  if (problem.position.column > 0) text += ":" + std::to_string(problem.position.column);
  if (!problem.key.empty()) text += (text.empty() ? "" : ": ") + problem.key;
  return text;
}

}  // namespace

void Diagnostics::Add(Problem problem) {
  problem.position.file = Printable(problem.position.file);
  problem.key = Printable(problem.key, kLongestKey);
  problem.what = Printable(problem.what, kLongestText);
  problem.fix = Printable(problem.fix, kLongestText);
  if (problem.severity == Severity::kError) ++num_errors_;
  problems_.push_back(std::move(problem));
}

void Diagnostics::Error(std::string id, Position position, std::string key, std::string what, std::string fix) {
  Add({Severity::kError, std::move(id), std::move(position), std::move(key), std::move(what), std::move(fix)});
}

void Diagnostics::Warning(std::string id, Position position, std::string key, std::string what, std::string fix) {
  Add({Severity::kWarning, std::move(id), std::move(position), std::move(key), std::move(what), std::move(fix)});
}

void Diagnostics::Notice(std::string id, Position position, std::string key, std::string what, std::string fix) {
  Add({Severity::kNotice, std::move(id), std::move(position), std::move(key), std::move(what), std::move(fix)});
}

int Diagnostics::num_warnings() const {
  return static_cast<int>(
      std::ranges::count_if(problems_, [](const Problem& p) { return p.severity == Severity::kWarning; }));
}

void Diagnostics::Relocate(std::string_view key, const Position& position) {
  for (Problem& problem : problems_) {
    const bool within =
        problem.key.starts_with(key) && (problem.key.size() == key.size() || problem.key[key.size()] == '.');
    if (within) problem.position = position;
  }
}

void Diagnostics::SortByPosition() {
  std::ranges::stable_sort(
      problems_, {}, [](const Problem& p) { return std::tuple(p.position.file, p.position.line, p.position.column); });
}

void Diagnostics::WarningsAreErrors() {
  for (Problem& problem : problems_) {
    if (problem.severity != Severity::kWarning) continue;
    problem.severity = Severity::kError;
    ++num_errors_;
  }
}

std::string Diagnostics::Render(Severity lowest) const {
  std::string text;
  for (const Problem& problem : problems_) {
    if (problem.severity >= lowest) text += trireme::Render(problem) + "\n";
  }
  return text;
}

void Diagnostics::ThrowIfErrors() const {
  const auto is_error = [](const Problem& p) { return p.severity == Severity::kError; };
  const auto first = std::ranges::find_if(problems_, is_error);
  if (first == problems_.end()) return;
  std::string fix = first->fix;
  for (auto it = first + 1; it != problems_.end(); ++it) {
    if (is_error(*it)) fix += "\n" + trireme::Render(*it);
  }
  throw ProblemsError({ErrorCode::kConfig, first->id, first->what, Where(*first), fix}, problems_);
}

std::string_view Name(Severity severity) {
  static constexpr std::string_view kNames[] = {"notice", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

std::string Render(const Problem& problem) {
  std::string text = std::string(Name(problem.severity)) + " " + problem.id + ": ";
  if (const std::string where = Where(problem); !where.empty()) text += where + ": ";
  text += problem.what;
  if (!problem.fix.empty()) text += "\n  fix: " + problem.fix;
  return text;
}

}  // namespace trireme
