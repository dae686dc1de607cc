// The version that `trireme --version` prints and that both programs of one installation must share.
#pragma once
#include <string_view>

namespace trireme {
std::string_view Version();
}  // namespace trireme
