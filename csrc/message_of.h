// What an error says to a user.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

namespace chameleon {

// Without torch's stack of C++ frames. It lives as long as the error.
inline const char* text_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "the host has no memory left";
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch ? from_torch->what_without_backtrace() : error.what();
}

inline std::string message_of(const std::exception& error) { return text_of(error); }

}  // namespace chameleon
