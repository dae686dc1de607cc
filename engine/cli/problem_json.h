// A problem of a config or a model's file as an object, in what --json prints (docs/plan.md).
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "parsers/diagnostics.h"

namespace trireme::cli {

nlohmann::ordered_json ProblemJson(const Problem& problem);

}  // namespace trireme::cli
