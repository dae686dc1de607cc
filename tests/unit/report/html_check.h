// What every page of this project must be, seen without a browser.
#pragma once
#include <string>
#include <vector>

namespace trireme::testing {

// Elements that are not closed in their order, attributes without quotes, references to anything outside the page.
// Empty: none.
std::vector<std::string> FaultsOfPage(const std::string& html);

// The text of <script type="application/json" id="ID">; "" if there is none.
std::string DataOfPage(const std::string& html, const std::string& id);

}  // namespace trireme::testing
