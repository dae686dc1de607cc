#include "engine/report/html.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/bytes.h"
#include "engine/base/json_text.h"
#include "engine/base/version.h"
#include "engine/report/assets_generated.h"

namespace trireme::report {
namespace {

constexpr std::array<std::string_view, kNumMemoryClasses> kMemoryColours = {
    "#4c78a8", "#e0902f", "#4f9d55", "#8cc97a", "#d9534f", "#57b0b5", "#b06fa8", "#e6c34a",
    "#b9c0c9", "#c98a5b", "#8d6e55", "#ef9aa8", "#7f8a97", "#6b7fd1", "#9b8f3d", "#5d6673"};

using Entries = std::vector<std::pair<std::string, std::string_view>>;  // name and colour

std::string LegendOf(const Entries& entries) {
  std::string html = "<div class=\"legend\">";
  for (const auto& [name, colour] : entries) {
    html += fmt::format("<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>", colour, Escape(name));
  }
  return html + "</div>\n";
}

// Of all bars, in the order in which they stand in them.
Entries PartsOf(const std::vector<Bar>& bars) {
  size_t longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, bar.parts.size());
  Entries entries;
  for (size_t i = 0; i < longest; ++i) {
    for (const Bar& bar : bars) {
      if (i >= bar.parts.size() || bar.parts[i].value <= 0) continue;
      const BarPart& part = bar.parts[i];
      if (std::ranges::find(entries, part.name, &Entries::value_type::first) == entries.end()) {
        entries.emplace_back(part.name, part.colour);
      }
    }
  }
  return entries;
}

std::string DataScript(const std::string& id, const std::string& json) {
  return fmt::format("<script type=\"application/json\" id=\"{}\">{}</script>\n", id, json);
}

// Lanes of a row in order, each with a list of spans; names once.
class TimelineJson {
 public:
  explicit TimelineJson(const Timeline& timeline) : timeline_(timeline) {}

  std::string Text() {
    std::string rows;
    for (size_t i = 0; i < timeline_.rows.size(); ++i) rows += (i == 0 ? "" : ",\n") + Row(i);
    std::string kinds, names;
    for (size_t kind = 0; kind < kNumSpanKinds; ++kind) {
      const SpanKind of = static_cast<SpanKind>(kind);
      kinds += fmt::format("{}{{\"name\":{},\"color\":\"{}\",\"waits\":{}}}", kind == 0 ? "" : ",", JsonText(Label(of)),
                           Colour(of), of == SpanKind::kWait);
    }
    for (const std::string& name : names_) names += (names.empty() ? "" : ",") + JsonText(name);
    return fmt::format("{{\"step_seconds\":{},\"kinds\":[{}],\n\"rows\":[{}],\n\"names\":[{}]}}",
                       JsonNumber(timeline_.step_seconds), kinds, rows, names);
  }

 private:
  // Ranks that run alike share their spans.
  std::string Row(size_t index) {
    const TimelineRow& row = timeline_.rows[index];
    const std::string head = fmt::format("{{\"label\":{},\"note\":{},", JsonText(row.label), JsonText(row.note));
    for (size_t earlier = 0; earlier < index; ++earlier) {
      if (timeline_.rows[earlier].spans == row.spans) return head + fmt::format("\"like\":{}}}", earlier);
    }
    std::map<Lane, std::string> lanes;
    for (const Span& span : row.spans) {
      std::string& list = lanes[span.lane];
      const double start = std::round(span.start * 1e9), end = std::round(span.end * 1e9);
      list += fmt::format("{}{:.0f},{:.0f},{},{},{}", list.empty() ? "" : ",", start, end - start,
                          static_cast<int>(span.kind), NumberOf(span.name), span.micro_batch);
    }
    std::string text;
    for (const auto& [lane, spans] : lanes) {
      text += fmt::format("{}{{\"name\":{},\"spans\":[{}]}}", text.empty() ? "" : ",", JsonText(Name(lane)), spans);
    }
    return head + fmt::format("\"lanes\":[{}]}}", text);
  }

  // A name says its micro-batch at the end, and the span does too.
  int NumberOf(const std::string& full) {
    if (full.empty()) return -1;
    const std::string name = full.substr(0, full.rfind(" micro-batch "));
    const auto [found, added] = numbers_.try_emplace(name, static_cast<int>(names_.size()));
    if (added) names_.push_back(name);
    return found->second;
  }

  const Timeline& timeline_;
  std::map<std::string, int> numbers_;
  std::vector<std::string> names_;
};

}  // namespace

std::string_view Colour(MemoryClass memory_class) { return kMemoryColours[static_cast<size_t>(memory_class)]; }

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Page::Page(std::string title, std::string subtitle) : title_(std::move(title)) {
  body_ = fmt::format("<h1>{}</h1>\n<p>{}</p>\n", Escape(title_), Escape(subtitle));
}

void Page::AddHeading(std::string_view text, std::string_view note) {
  body_ += fmt::format("<h2>{}</h2>\n", Escape(text));
  if (!note.empty()) AddNote(note);
}

void Page::AddNote(std::string_view text) { body_ += fmt::format("<p>{}</p>\n", Escape(text)); }

void Page::AddTiles(const std::vector<Tile>& tiles) {
  body_ += "<div class=\"tiles\">\n";
  for (const Tile& tile : tiles) {
    body_ +=
        fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", Escape(tile.value), Escape(tile.label));
  }
  body_ += "</div>\n";
}

void Page::AddTable(const std::vector<std::string>& head, const std::vector<std::vector<TableCell>>& rows,
                    bool last_is_total) {
  body_ += "<div class=\"panel scroll\"><table>\n<thead><tr>";
  for (const std::string& cell : head) body_ += fmt::format("<th>{}</th>", Escape(cell));
  body_ += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    body_ += last_is_total && r + 1 == rows.size() ? "<tr class=\"total\">" : "<tr>";
    for (const TableCell& cell : rows[r]) {
      body_ += fmt::format("<td>{}{}</td>", Escape(cell.text),
                           cell.small.empty() ? "" : fmt::format(" <small>{}</small>", Escape(cell.small)));
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void Page::AddBars(const std::vector<Bar>& bars, double full) {
  body_ += "<div class=\"panel\">\n";
  for (const Bar& bar : bars) {
    body_ += fmt::format("<div class=\"barrow\"><span>{}</span><div class=\"bar\">", Escape(bar.label));
    for (const BarPart& part : bar.parts) {
      if (part.value <= 0 || full <= 0) continue;
      body_ += fmt::format("<i style=\"width:{:.3f}%;background:{}\" data-tip=\"{}: {}\"></i>", 100 * part.value / full,
                           part.colour, Escape(part.name), Escape(part.text));
    }
    body_ += fmt::format("</div><span class=\"value\">{}</span></div>\n", Escape(bar.value));
  }
  body_ += LegendOf(PartsOf(bars)) + "</div>\n";
}

void Page::AddSubheading(std::string_view text) { body_ += fmt::format("<h3>{}</h3>\n", Escape(text)); }

void Page::AddTimeline(const std::string& id, const Timeline& timeline, const std::string& view,
                       std::string_view caption) {
  std::set<SpanKind> used;
  for (const TimelineRow& row : timeline.rows) {
    for (const Span& span : row.spans) used.insert(span.kind);
  }
  Entries entries;
  for (const SpanKind kind : used) entries.emplace_back(std::string(Label(kind)), Colour(kind));
  body_ += fmt::format(
      "<div class=\"panel\" data-timeline=\"{}\" data-view=\"{}\"><div class=\"controls\"><button type=\"button\" "
      "data-act=\"in\">zoom "
      "in</button><button type=\"button\" data-act=\"out\">zoom out</button><button type=\"button\" "
      "data-act=\"fit\">whole step</button><span class=\"hint\">drag to move, double click or Ctrl + wheel to zoom; "
      "numbers are micro-batches</span>{}</div>\n<canvas role=\"img\" aria-label=\"timeline of one "
      "step\"></canvas>\n{}</div>\n",
      id, view, caption.empty() ? "" : fmt::format("<b>{}</b>", Escape(caption)), LegendOf(entries));
  body_ += DataScript(id, TimelineJson(timeline).Text());
  has_timeline_ = true;
}

void Page::AddMemory(const std::string& id, const std::vector<MemoryRow>& rows, double step_seconds,
                     double limit_bytes) {
  std::vector<size_t> classes;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    const bool any = std::ranges::any_of(rows, [&](const MemoryRow& row) {
      return std::ranges::any_of(row.bytes, [&](const MemoryByClass& bytes) { return bytes[c] > 0; });
    });
    if (any) classes.push_back(c);
  }
  Entries entries;
  std::string kinds, json, select;
  for (const size_t c : classes) {
    const MemoryClass of = static_cast<MemoryClass>(c);
    entries.emplace_back(std::string(Name(of)), Colour(of));
    kinds +=
        fmt::format("{}{{\"name\":{},\"color\":\"{}\"}}", kinds.empty() ? "" : ",", JsonText(Name(of)), Colour(of));
  }
  for (const MemoryRow& row : rows) {
    std::string seconds, bytes;
    for (size_t i = 0; i < row.seconds.size(); ++i) {
      seconds += fmt::format("{}{:.7g}", i == 0 ? "" : ",", row.seconds[i]);
      std::string point;
      for (const size_t c : classes) point += fmt::format("{}{}", point.empty() ? "" : ",", row.bytes[i][c]);
      bytes += fmt::format("{}[{}]", i == 0 ? "" : ",", point);
    }
    json += fmt::format("{}{{\"label\":{},\"seconds\":[{}],\"bytes\":[{}]}}", json.empty() ? "" : ",\n",
                        JsonText(row.label), seconds, bytes);
    select += fmt::format("<option>{}</option>", Escape(row.label));
  }
  body_ += fmt::format("<div class=\"panel\" data-areas=\"{}\">", id);
  if (rows.size() > 1) body_ += "<div class=\"controls\"><select aria-label=\"rank\">" + select + "</select></div>\n";
  body_ += "<svg role=\"img\" aria-label=\"memory over time\"></svg>\n" + LegendOf(entries) + "</div>\n";
  body_ += DataScript(id, fmt::format("{{\"step_seconds\":{},\"limit\":{:.0f},\"classes\":[{}],\"rows\":[{}]}}",
                                      JsonNumber(step_seconds), limit_bytes, kinds, json));
  has_areas_ = true;
}

void Page::AddColumns(std::string_view title, std::string_view unit, const std::vector<Column>& columns) {
  constexpr double kLeft = 190, kRight = 250, kWidth = 980, kRow = 30, kTop = 26;
  double most = 0;
  for (const Column& c : columns) most = std::max({most, c.value + c.deviation, c.predicted.value_or(0)});
  if (most <= 0) most = 1;
  const auto x = [&](double value) { return kLeft + std::max(0.0, value) / most * (kWidth - kLeft - kRight); };
  const auto bare = [](double value) {
    return value >= 1000 ? FormatCount(static_cast<int64_t>(value)) : fmt::format("{:.3g}", value);
  };
  const auto number = [&](double value) { return fmt::format("{} {}", bare(value), unit); };
  std::string svg;
  double y = kTop;
  for (const Column& c : columns) {
    const double middle = y + kRow / 2;
    const std::string tip = fmt::format("{}: {}{}{}", c.label, number(c.value),
                                        c.deviation > 0 ? fmt::format(" ± {:.2g}", c.deviation) : "",
                                        c.predicted ? "; predicted " + number(*c.predicted) : "");
    svg += fmt::format(
        "<g data-tip=\"{}\"><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" class=\"strong\">{}</text>"
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" rx=\"2\" class=\"measured\"/>",
        Escape(tip), kLeft - 10, middle + 4, Escape(c.label), kLeft, middle - 9, x(c.value) - kLeft);
    if (c.deviation > 0) {
      svg += fmt::format(
          "<path d=\"M{0:.1f} {2:.1f}V{3:.1f}M{1:.1f} {2:.1f}V{3:.1f}M{0:.1f} {4:.1f}H{1:.1f}\" "
          "class=\"whisker\"/>",
          x(c.value - c.deviation), x(c.value + c.deviation), middle - 5, middle + 5, middle);
    }
    if (c.predicted) {
      svg += fmt::format("<path d=\"M{0:.1f} {1:.1f}l7 7l-7 7l-7 -7Z\" class=\"predicted\"/>", x(*c.predicted),
                         middle - 7);
    }
    const double end = std::max(x(c.value + c.deviation), x(c.predicted.value_or(0)) + 7);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}{}</text></g>\n", end + 8, middle + 4,
                       Escape(number(c.value)), c.predicted ? Escape(fmt::format(" ({})", bare(*c.predicted))) : "");
    y += kRow;
  }
  body_ += fmt::format(
      "<div class=\"panel\"><svg class=\"plot\" viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">"
      "<text x=\"0\" y=\"14\" class=\"strong\">{} [{}]</text>\n{}</svg></div>\n",
      kWidth, y + 6, Escape(title), Escape(title), Escape(unit), svg);
}

std::string Page::Text() const {
  std::string scripts(kCommonJs);
  if (has_timeline_) scripts += kTimelineJs;
  if (has_areas_) scripts += kAreaJs;
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n<link "
      "rel=\"icon\" "
      "href=\"data:,\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{}<noscript><p>Timelines and curves "
      "are drawn by scripts that this page brings along.</p></noscript>\n<footer>trireme "
      "{}</footer>\n<script>\n{}</script>\n</body>\n</html>\n",
      Escape(title_), kStyleCss, body_, Version(), scripts);
}

}  // namespace trireme::report
