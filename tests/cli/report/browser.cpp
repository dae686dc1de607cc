#include "tests/cli/report/browser.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/launcher/command.h"

namespace trireme::testing {
namespace {

// Written into the head of the page, so that it sees everything that happens later.
const char* const kWatch = R"(<script>
const seen = [];
for (const level of ['error', 'warn', 'assert']) {
  const before = console[level];
  console[level] = (...words) => { seen.push(words.join(' ')); before.apply(console, words); };
}
addEventListener('error', e => seen.push(e.message + ' at line ' + e.lineno), true);
addEventListener('unhandledrejection', e => seen.push(String(e.reason)));
document.addEventListener('securitypolicyviolation', e => seen.push('blocked: ' + e.blockedURI + ' by ' + e.violatedDirective));
</script>
)";

// And to its end. Every button and every move is tried before the drawings are looked at.
const char* const kReport = R"(<script>
addEventListener('load', () => setTimeout(() => {
  for (const canvas of document.querySelectorAll('canvas')) {
    const box = canvas.getBoundingClientRect();
    for (let y = 2; y < box.height; y += 9) canvas.dispatchEvent(new MouseEvent('mousemove', {clientX: box.left + 200, clientY: box.top + y}));
    canvas.dispatchEvent(new MouseEvent('dblclick', {clientX: box.left + 200, clientY: box.top + 40}));
    canvas.dispatchEvent(new MouseEvent('mouseleave'));
  }
  for (const svg of document.querySelectorAll('svg')) svg.dispatchEvent(new MouseEvent('mousemove', {clientX: 300, clientY: 300}));
  for (const button of document.querySelectorAll('button')) button.click();
  for (const select of document.querySelectorAll('select')) {
    select.selectedIndex = select.length - 1;
    select.dispatchEvent(new Event('change'));
  }
  let painted = 0, blank = 0;
  for (const canvas of document.querySelectorAll('canvas')) {
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    new Set(pixels).size > 5 ? ++painted : ++blank;
  }
  for (const svg of document.querySelectorAll('svg')) svg.querySelector('path, rect') ? ++painted : ++blank;
  const result = document.createElement('pre');
  result.id = 'seen-by-test';
  result.textContent = encodeURIComponent(JSON.stringify({seen, painted, blank, requests: performance.getEntriesByType('resource').length,
    wide: document.documentElement.scrollWidth > innerWidth + 1 ? 1 : 0}));
  document.body.append(result);
}, 50));
</script>
)";

std::string Decoded(const std::string& text) {  // of encodeURIComponent
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string Browser() {
  const char* path = std::getenv("PATH");
  for (const char* name :
       {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell"}) {
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string file = folder + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return "";
}

std::optional<Rendered> Render(const std::string& browser, const std::string& html, bool dark, std::string& why) {
  const TempFolder folder;
  std::string page = html;
  page.insert(page.find("<head>") + 6, std::string("\n") + kWatch);
  page.insert(page.rfind("</body>"), kReport);
  const std::string file = (folder.path() / "page.html").string();
  std::ofstream(file) << page;
  std::vector<std::string> words = {"--headless=new",
                                    "--no-sandbox",  // tests run as root in containers
                                    "--disable-gpu",
                                    "--disable-dev-shm-usage",
                                    "--disable-background-networking",
                                    "--disable-component-update",
                                    "--no-first-run",
                                    "--window-size=1300,1000",
                                    "--user-data-dir=" + (folder.path() / "profile").string(),
                                    "--virtual-time-budget=5000",
                                    "--dump-dom"};
  if (dark) words.push_back("--force-dark-mode");
  words.push_back("file://" + file);
  const Outcome outcome = Command(browser, words).Wait();
  const std::string mark = "<pre id=\"seen-by-test\">";
  const size_t begin = outcome.out.find(mark);
  if (outcome.code != 0 || begin == std::string::npos) {
    why = browser + " ended with " + std::to_string(outcome.code) + ": " + outcome.err.substr(0, 2000);
    return std::nullopt;
  }
  const size_t from = begin + mark.size();
  const nlohmann::json seen =
      nlohmann::json::parse(Decoded(outcome.out.substr(from, outcome.out.find('<', from) - from)));
  Rendered rendered;
  rendered.complaints = seen["seen"].get<std::vector<std::string>>();
  rendered.requests = seen["requests"];
  rendered.painted = seen["painted"];
  rendered.blank = seen["blank"];
  rendered.wide = seen["wide"];
  return rendered;
}

}  // namespace trireme::testing
