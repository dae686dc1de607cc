// What the config resolves to, and who said so.
#include "engine/cli/plan_text.h"
#include "parsers/schema/resolved.h"

namespace trireme::cli {

void PrintResolved(const Config& config, bool all) {
  const ResolvedRows rows = all ? ResolvedRows::kAll : ResolvedRows::kNotable;
  std::string_view title = "config";
  for (const std::string& line : Lines(ResolvedTable(config, rows))) {
    Line(title, line);
    title = "";
  }
  if (!all)
    Line("", "(all other keys have their defaults: --resolved lists them, `trireme explain KEY` says what they do)");
}

}  // namespace trireme::cli
