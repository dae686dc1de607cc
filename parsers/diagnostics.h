// Problems that a user can cure, collected so that all of one file are shown at once. Nothing here throws.
//   Diagnostics d;  d.Error("CFG005", {"ds.json", 3, 12}, "bf16.enabled", "text \"true\" is no boolean", "write true");
//   if (d.HasErrors()) std::cerr << d.Render();
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

enum class Severity { kNotice, kWarning, kError };

// Where in a file; line and column count from 1, 0 is "not known". An empty file is the command line.
struct Position {
  std::string file;
  int line = 0;
  int column = 0;
};

// Texts are kept as a terminal may show them: control characters escaped, long ones cut.
struct Problem {
  Severity severity = Severity::kError;
  std::string id;  // stable, has a section in docs/errors/parsers.md
  Position position;
  std::string key;   // "zero_optimization.stage"; "" where the problem is the file itself
  std::string what;  // with the numbers in it
  std::string fix;   // what to do; "" only for notices
};

class Diagnostics {
 public:
  void Add(Problem problem);
  void Error(std::string id, Position position, std::string key, std::string what, std::string fix);
  void Warning(std::string id, Position position, std::string key, std::string what, std::string fix);
  void Notice(std::string id, Position position, std::string key, std::string what, std::string fix = "");

  const std::vector<Problem>& problems() const { return problems_; }
  bool HasErrors() const { return num_errors_ > 0; }
  int num_errors() const { return num_errors_; }
  int num_warnings() const;

  // Problems of `key`, and of what lies in it, are there and nowhere else.
  void Relocate(std::string_view key, const Position& position);
  void SortByPosition();     // stable; problems without a line come first
  void WarningsAreErrors();  // --strict

  // Every problem of at least `lowest`, two lines each:
  //   error CFG020: ds.json:3:3: train_batch_size: 512 != 4 (micro) x ...
  //     fix: set gradient_accumulation_steps to 16
  std::string Render(Severity lowest = Severity::kNotice) const;

  // Throws Error{kConfig} with the first error's id and all errors in the text, if there is one.
  void ThrowIfErrors() const;

 private:
  std::vector<Problem> problems_;
  int num_errors_ = 0;
};

std::string Render(const Problem& problem);

}  // namespace trireme
