// What stands behind --deepspeed_config: a file, or the text of one in URL-safe base64, as gpt-neox hands it on.
#pragma once
#include <optional>
#include <string>

#include "parsers/diagnostics.h"

namespace trireme {

struct ConfigSource {
  std::string name;  // for messages: the path, or "<base64>"
  std::string text;
};

// A file of that name comes first. nullopt: it is neither (CFG001).
std::optional<ConfigSource> ReadConfigSource(const std::string& argument, Diagnostics& diagnostics);

// URL-safe base64 (RFC 4648 section 5) with its padding, as DeepSpeed decodes it. nullopt: it is none.
std::optional<std::string> FromBase64(const std::string& text);

}  // namespace trireme
