// The one exception type of the libraries, and the check for our own bugs.
//   throw Error(ErrorCode::kData, "DAT003", "tokens.bin has 900 bytes, its index needs 1000", "tokens.bin", "tokenise
//   the text again");
// A user's mistakes in a file are data, not exceptions: see parsers/diagnostics.h.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme {

enum class ErrorCode {
  kCheckFailed,    // a check said no: `plan` does not fit, `selfcheck` differs
  kUsage,          // command line
  kData,           // token files
  kCheckpoint,     // checkpoint files
  kEnvironment,    // missing program, variable, permission, disk
  kCommunication,  // rendezvous, collectives
  kInternal,       // our bug
  kDevice,         // GPU
  kConfig,         // ds_config.json and model description
};

// Exit code of the process: 1, 2, 65, 65, 69, 69, 70, 71, 78 in the order above.
int ExitCode(ErrorCode code);

class Error : public std::runtime_error {
 public:
  // `id` is stable (CFG012) and has a section in docs/errors/; `where` is a file, key, rank or host ("" if nowhere);
  // `fix` says what to do.
  Error(ErrorCode code, std::string id, std::string what, std::string where, std::string fix);

  ErrorCode code() const { return code_; }
  const std::string& id() const { return id_; }
  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  const std::string& fix() const { return fix_; }

 private:  // what() is the rendered text: "error DAT003: <where>: <what>\n  fix: <fix>"
  ErrorCode code_;
  std::string id_, message_, where_, fix_;
};

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line, const std::string& text);

}  // namespace trireme

// For our bugs only: no user input may reach it. TRIREME_CHECK(a == b, "what was expected, with numbers").
#define TRIREME_CHECK(condition, text)                                                \
  do {                                                                                \
    if (!(condition)) ::trireme::CheckFailed(#condition, __FILE__, __LINE__, (text)); \
  } while (false)
