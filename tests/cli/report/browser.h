// Opens a page in a headless Chromium or Chrome, where there is one.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace trireme::testing {

// The program, or "" if none of chromium, chromium-browser, google-chrome, google-chrome-stable and
// chrome-headless-shell is on the PATH.
std::string Browser();

struct Rendered {
  std::vector<std::string> complaints;  // errors, warnings and violations of the page's policy, as the console has them
  int requests = -1;                    // for anything but the page
  int painted = -1;                     // canvases and drawings with something on them
  int blank = -1;                       // and without
  int wide = -1;                        // 1: the page is wider than the window
};

// nullopt, with why, if the browser did not get through. `dark`: as a reader who prefers dark pages sees it.
std::optional<Rendered> Render(const std::string& browser, const std::string& html, bool dark, std::string& why);

}  // namespace trireme::testing
