// Texts as JSON writes them.
//   out += "\"name\": " + JsonText(name);
#pragma once
#include <string>
#include <string_view>

namespace trireme {

// In quotes, with everything escaped that JSON, a JavaScript literal or an HTML <script> would misread. Bytes that are
// no UTF-8 become U+FFFD.
std::string JsonText(std::string_view text);

// The shortest decimal that reads back as `value`; null where it is not finite.
std::string JsonNumber(double value);

}  // namespace trireme
