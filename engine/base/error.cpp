#include "engine/base/error.h"

#include <fmt/core.h>

#include <utility>

namespace trireme {
namespace {

std::string Render(const std::string& id, const std::string& what, const std::string& where, const std::string& fix) {
  std::string text = fmt::format("error {}: {}{}{}", id, where, where.empty() ? "" : ": ", what);
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}

}  // namespace

int ExitCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCheckFailed:
      return 1;
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kData:
    case ErrorCode::kCheckpoint:
      return 65;
    case ErrorCode::kEnvironment:
    case ErrorCode::kCommunication:
      return 69;
    case ErrorCode::kInternal:
      return 70;
    case ErrorCode::kDevice:
      return 71;
    case ErrorCode::kConfig:
      return 78;
  }
  return 70;
}

Error::Error(ErrorCode code, std::string id, std::string what, std::string where, std::string fix)
    : std::runtime_error(Render(id, what, where, fix)),
      code_(code),
      id_(std::move(id)),
      message_(std::move(what)),
      where_(std::move(where)),
      fix_(std::move(fix)) {}

void CheckFailed(const char* condition, const char* file, int line, const std::string& text) {
  throw Error(ErrorCode::kInternal, "INT001", fmt::format("{} does not hold: {}", condition, text),
              fmt::format("{}:{}", file, line),
              "this is a bug of Trireme; please report it with the command and the config");
}

}  // namespace trireme
