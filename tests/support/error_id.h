// What a call throws, in one word.
#pragma once
#include <functional>
#include <string>

#include "engine/base/error.h"

namespace trireme::testing {

// The id of the Error that `action` throws; "" for none.
inline std::string IdOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.id();
  }
  return "";
}

}  // namespace trireme::testing
