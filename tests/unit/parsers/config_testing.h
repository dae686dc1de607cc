// Shorthand of the tests of this folder: parse a text, look for problems.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "parsers/cli.h"
#include "parsers/config.h"

namespace trireme::testing {

inline TrainFlags WithLr(double lr = 1e-3) {
  TrainFlags flags;
  flags.lr = lr;
  return flags;
}

inline ParseResult Parse(const std::string& text, int64_t world_size = 1, const TrainFlags& flags = WithLr(),
                         int64_t hidden_size = 0) {
  return ParseConfigText(text, "ds.json", flags, world_size, hidden_size);
}

// {"train_batch_size": 1, <rest>}
inline ParseResult ParseKeys(const std::string& rest, const TrainFlags& flags = WithLr(), int64_t hidden_size = 0) {
  return Parse("{\"train_batch_size\": 1, " + rest + "}", 1, flags, hidden_size);
}

inline std::vector<Problem> Of(const ParseResult& result, Severity severity) {
  std::vector<Problem> found;
  std::ranges::copy_if(result.diagnostics.problems(), std::back_inserter(found),
                       [&](const Problem& p) { return p.severity == severity; });
  return found;
}
inline std::vector<Problem> Errors(const ParseResult& result) { return Of(result, Severity::kError); }

// "CFG006 zero_optimization.stage" of each error, in order.
inline std::vector<std::string> ErrorKeys(const ParseResult& result) {
  std::vector<std::string> keys;
  for (const Problem& problem : Errors(result)) keys.push_back(problem.id + " " + problem.key);
  return keys;
}

inline bool Has(const ParseResult& result, Severity severity, const std::string& id, const std::string& key) {
  return std::ranges::any_of(result.diagnostics.problems(),
                             [&](const Problem& p) { return p.severity == severity && p.id == id && p.key == key; });
}

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string SourceOf(const ParseResult& result, const std::string& key) {
  for (const Origin& origin : result.config.origins) {
    if (origin.key == key) return origin.source;
  }
  return "no row";
}

}  // namespace trireme::testing
