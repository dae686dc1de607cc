#include "engine/cli/error_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/version.h"
#include "engine/cli/problem_json.h"
#include "parsers/problems_error.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json ProblemJson(const Problem& problem) {
  const Position& at = problem.position;
  return {{"severity", Name(problem.severity)},
          {"id", problem.id},
          {"file", at.file},
          {"line", at.line > 0 ? Json(at.line) : Json(nullptr)},
          {"column", at.column > 0 ? Json(at.column) : Json(nullptr)},
          {"key", problem.key},
          {"what", problem.what},
          {"fix", problem.fix}};
}

std::string ErrorJson(const Error& error) {
  Json problems = Json::array();
  if (const auto* several = dynamic_cast<const ProblemsError*>(&error)) {
    for (const Problem& problem : several->problems()) problems.push_back(ProblemJson(problem));
  } else {
    problems.push_back(ProblemJson({Severity::kError, error.id(), {}, error.where(), error.message(), error.fix()}));
  }
  const Json out = {{"schema", 1},
                    {"version", std::string(Version())},
                    {"exit_code", ExitCode(error.code())},
                    {"problems", problems}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int OrErrorJson(Arguments arguments, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (std::ranges::find(arguments, "--json") != arguments.end()) fmt::print("{}", ErrorJson(error));
    throw;
  }
}

}  // namespace trireme::cli
