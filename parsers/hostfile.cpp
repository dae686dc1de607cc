#include "parsers/hostfile.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "parsers/json_tree.h"

namespace trireme {
namespace {

constexpr const char* kFix = "write \"host slots=N\", N being the number of ranks on it";

std::string_view TakeWord(std::string_view& rest) {
  rest = Trim(rest);
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t"));
  rest.remove_prefix(word.size());
  return word;
}

// Names end up on command lines of ssh and pdsh: nothing there may mean something to a shell.
bool IsSafeName(std::string_view name) {
  const std::string_view address =
      name.starts_with('[') && name.ends_with(']') ? name.substr(1, name.size() - 2) : name;
  return !address.empty() && address.front() != '-' && std::ranges::all_of(address, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-:@").find(c) != std::string_view::npos;
  });
}

// The reason why the line is no entry, or "".
std::string ParseLine(std::string_view line, Host& host) {
  std::string_view rest = line;
  host.name = TakeWord(rest);
  const std::string_view slots = TakeWord(rest);
  if (!IsSafeName(host.name)) return fmt::format("{} is no host name", Quoted(host.name));
  if (!slots.starts_with("slots=")) {
    return slots.empty() ? fmt::format("slots=N is missing after {}", Quoted(host.name))
                         : fmt::format("slots=N must follow the host, and {} does", Quoted(slots));
  }
  const std::string_view digits = slots.substr(6);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), host.slots);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return fmt::format("{} is no number of slots", Quoted(digits));
  }
  if (host.slots < 1 || host.slots > 1024) return fmt::format("{} slots: it must be 1 to 1024", host.slots);
  while (!Trim(rest).empty()) {  // further key=value pairs are read by others, as DeepSpeed leaves them
    const std::string_view word = TakeWord(rest);
    if (word.starts_with('#')) break;
    if (word.find('=') == std::string_view::npos)
      return fmt::format("{} after the slots is no key=value", Quoted(word));
  }
  return "";
}

}  // namespace

std::vector<Host> ParseHostfile(std::string_view text, const std::string& name, Diagnostics& diagnostics) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<Host> hosts;
  int line_number = 0;
  bool any = false;
  for (const std::string& raw : Split(text, '\n')) {
    ++line_number;
    const std::string_view line = Trim(raw);
    if (line.empty() || line.starts_with('#')) continue;
    any = true;
    Host host{"", 0, line_number};
    if (const std::string reason = ParseLine(line, host); !reason.empty()) {
      diagnostics.Error("HST001", {name, line_number, 0}, "", reason, kFix);
      continue;
    }
    const auto first = std::ranges::find(hosts, host.name, &Host::name);
    if (first != hosts.end()) {
      diagnostics.Error("HST002", {name, line_number, 0}, "",
                        fmt::format("host {} stands twice, first at line {}", host.name, first->line),
                        "write one line with the sum of the slots");
      continue;
    }
    hosts.push_back(std::move(host));
  }
  if (!any) diagnostics.Error("HST003", {name, 0, 0}, "", "the hostfile names no host", kFix);
  return hosts;
}

std::vector<Host> ReadHostfile(const std::filesystem::path& path, Diagnostics& diagnostics) {
  std::string text;
  try {
    text = ReadFile(path, ErrorCode::kConfig);
  } catch (const Error& error) {
    diagnostics.Error("HST004", {path.string(), 0, 0}, "", error.message(), "check the path");
    return {};
  }
  return ParseHostfile(text, path.string(), diagnostics);
}

}  // namespace trireme
