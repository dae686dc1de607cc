// Stands in for trireme-engine beside a copy of trireme: checks the version as the real one does, then says what it was
// asked.
#include <cstdio>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/cli/engine_exec.h"

int main(int argc, char** argv) {
  try {
    trireme::cli::CheckExpectedVersion();
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return trireme::ExitCode(error.code());
  }
  const char* rank = std::getenv("RANK");
  const char* version = std::getenv(trireme::cli::kExpectVersionVariable);
  std::printf("engine rank=%s expects=%s:", rank == nullptr ? "none" : rank, version == nullptr ? "none" : version);
  for (int i = 1; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  return 0;
}
