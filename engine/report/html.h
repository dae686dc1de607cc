// A page of HTML in one file: style and scripts inside, nothing from a network, light and dark by the reader's setting.
//   Page page("title", "subtitle");  page.Add(Table(...));  page.AddTimeline("predicted", timeline);  page.Text();
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/report/simulated.h"
#include "engine/report/timeline.h"

namespace trireme::report {

std::string Escape(std::string_view text);  // for HTML's text and attributes

struct Tile {
  std::string value, label;
};

struct TableCell {
  std::string text;
  std::string small;  // after it, paler
};

// A part of a bar.
struct BarPart {
  std::string name;
  std::string_view colour;
  double value = 0;
  std::string text;  // the value, for the reader
};
struct Bar {
  std::string label, value;
  std::vector<BarPart> parts;
};

class Page {
 public:
  Page(std::string title, std::string subtitle);

  void AddHeading(std::string_view text, std::string_view note = "");
  void AddNote(std::string_view text);
  void AddTiles(const std::vector<Tile>& tiles);
  // First column to the left, numbers to the right. `last_is_total` sets the last row apart.
  void AddTable(const std::vector<std::string>& head, const std::vector<std::vector<TableCell>>& rows,
                bool last_is_total = false);
  // Bars of one scale, 0 to `full`, with a legend of their parts. `limit`: marked where it is inside; 0: none.
  void AddBars(const std::vector<Bar>& bars, double full);
  void AddSubheading(std::string_view text);
  // `id`: letters, of the page alone. Timelines of one `view` zoom together.
  void AddTimeline(const std::string& id, const Timeline& timeline, const std::string& view = "step",
                   std::string_view caption = "");
  // Stacked areas over time. `limit_bytes`: of a device; 0: not known.
  void AddMemory(const std::string& id, const std::vector<MemoryRow>& rows, double step_seconds, double limit_bytes);
  // Horizontal bars with whiskers, and predictions as diamonds on them.
  struct Column {
    std::string label;
    double value = 0, deviation = 0;
    std::optional<double> predicted;
  };
  void AddColumns(std::string_view title, std::string_view unit, const std::vector<Column>& columns);

  std::string Text() const;

 private:
  std::string title_, body_;
  bool has_timeline_ = false, has_areas_ = false;
};

std::string_view Colour(MemoryClass memory_class);

}  // namespace trireme::report
