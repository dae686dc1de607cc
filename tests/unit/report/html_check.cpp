#include "tests/unit/report/html_check.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

namespace trireme::testing {
namespace {

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

std::vector<std::string> FaultsOfPage(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "link", "br", "img", "input"};
  std::vector<std::string> faults, open;
  if (!html.starts_with("<!DOCTYPE html>")) faults.push_back("no doctype");
  const std::regex tag("<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\\s+[a-zA-Z][a-zA-Z0-9-]*(?:=\"[^\"<]*\")?)*)\\s*(/?)>");
  for (size_t at = html.find('<', 1); at != std::string::npos;) {
    std::smatch match;
    const std::string rest = html.substr(at, 2000);
    if (!std::regex_search(rest, match, tag, std::regex_constants::match_continuous)) {
      faults.push_back("no tag: " + rest.substr(0, 60));
      at = html.find('<', at + 1);
      continue;
    }
    const std::string name = match[2];
    at += static_cast<size_t>(match.length());
    if (match[1] == "/") {
      if (open.empty() || open.back() != name)
        faults.push_back("</" + name + "> closes " + (open.empty() ? "" : open.back()));
      if (!open.empty()) open.pop_back();
    } else if (!kVoid.contains(name) && match[4] != "/") {
      open.push_back(name);
      if (name == "script" || name == "style") at = html.find("</" + name, at);  // text of another grammar
    }
    at = html.find('<', at);
  }
  for (const std::string& name : open) faults.push_back("<" + name + "> is not closed");
  for (const char* outside :
       {"http:", "https:", "//www.", "src=", "url(", "@import", "fetch(", "XMLHttpRequest", "import("}) {
    if (Has(html, outside)) faults.push_back(std::string("refers to something outside: ") + outside);
  }
  const std::regex href("href=\"([^\"]*)\"");
  for (std::sregex_iterator it(html.begin(), html.end(), href), end; it != end; ++it) {
    if ((*it)[1] != "data:,") faults.push_back("refers to " + (*it)[1].str());
  }
  return faults;
}

std::string DataOfPage(const std::string& html, const std::string& id) {
  const std::string head = "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t begin = html.find(head);
  if (begin == std::string::npos) return "";
  const size_t end = html.find("</script>", begin);
  return html.substr(begin + head.size(), end - begin - head.size());
}

}  // namespace trireme::testing
