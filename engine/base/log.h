// The log facade: hides spdlog, so that no header of ours includes it.
//   log::Info("loaded {} tensors in {:.1f} s", count, seconds);
// Rank 0 speaks; other ranks speak from Warn up, with their label: [rank 3 tp1 pp0]. Everything goes to stderr.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace trireme::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// Label and lowest level of the calling thread: ranks may be threads of one process. "" is rank 0.
void SetRank(std::string label, Level lowest);
void Write(Level level, std::string_view text);
bool Enabled(Level level);

template <typename... A>
void Debug(fmt::format_string<A...> format, A&&... args) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, fmt::format(format, std::forward<A>(args)...));
}
template <typename... A>
void Info(fmt::format_string<A...> format, A&&... args) {
  if (Enabled(Level::kInfo)) Write(Level::kInfo, fmt::format(format, std::forward<A>(args)...));
}
template <typename... A>
void Warn(fmt::format_string<A...> format, A&&... args) {
  if (Enabled(Level::kWarn)) Write(Level::kWarn, fmt::format(format, std::forward<A>(args)...));
}
template <typename... A>
void Error(fmt::format_string<A...> format, A&&... args) {
  if (Enabled(Level::kError)) Write(Level::kError, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace trireme::log
