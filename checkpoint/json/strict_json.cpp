#include "checkpoint/json/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace trireme::checkpoint {

bool ParseStrictJson(std::string_view text, nlohmann::json& value, std::string& problem) {
  constexpr int kMaxDepth = 64;
  std::vector<std::set<std::string>> keys;  // of each open object
  problem.clear();
  using Json = nlohmann::json;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second && problem.empty()) {
      problem = "the key \"" + parsed.get<std::string>() + "\" occurs twice";
    }
    if (depth > kMaxDepth && problem.empty()) problem = "more than 64 levels of nesting";
    return problem.empty();
  };
  try {
    value = Json::parse(text, watch);
    if (problem.empty() && value.is_discarded()) problem = "no JSON value";
  } catch (const Json::exception& error) {
    if (problem.empty()) problem = error.what();
  }
  return problem.empty();
}

}  // namespace trireme::checkpoint
