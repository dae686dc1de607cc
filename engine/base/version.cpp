#include "engine/base/version.h"

#include "engine/base/version_generated.h"

namespace trireme {
std::string_view Version() { return TRIREME_VERSION_STRING; }
}  // namespace trireme
