#include "engine/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace trireme::log {
namespace {

struct ThreadRank {
  std::string label;
  Level lowest = Level::kInfo;
};
thread_local ThreadRank t_rank;

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %v");
    made->set_level(spdlog::level::debug);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

}  // namespace

void SetRank(std::string label, Level lowest) { t_rank = {std::move(label), lowest}; }

bool Enabled(Level level) { return level >= t_rank.lowest; }

void Write(Level level, std::string_view text) {
  static constexpr std::string_view kNames[] = {"debug: ", "", "warning: ", "error: "};
  const std::string label = t_rank.label.empty() ? "" : "[" + t_rank.label + "] ";
  Logger().info("{}{}{}", label, kNames[static_cast<int>(level)], text);
}

}  // namespace trireme::log
