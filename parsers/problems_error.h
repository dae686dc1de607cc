// What Diagnostics::ThrowIfErrors throws: the first error as any Error has it, and everything that was found.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "parsers/diagnostics.h"

namespace trireme {

class ProblemsError : public Error {
 public:
  ProblemsError(const Error& error, std::vector<Problem> problems) : Error(error), problems_(std::move(problems)) {}
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

std::string_view Name(Severity severity);  // "notice", "warning", "error"

}  // namespace trireme
