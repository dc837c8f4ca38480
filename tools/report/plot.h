// A plot as data, and its drawing as SVG.
//
// The colours are those of Okabe and Ito, and viridis for heat maps: colour-blind people tell them
// apart. They are classes of a style sheet with a light and a dark theme.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vcas {

inline constexpr int kPlotColours = 8;

enum class Unit { kNumber, kPercent };  // percent: of values that are shares

struct Curve {
  std::string label;
  int colour = 0;  // 0 to kPlotColours - 1
  bool dashed = false;
  std::vector<double> x = {}, y = {};       // a NaN is a gap
  std::vector<double> low = {}, high = {};  // [x] a band round the curve, or empty
};

struct Curves {
  struct Level {  // a line from left to right
    std::string label;
    double y;
  };
  std::vector<Curve> curves = {};
  std::vector<Level> levels = {};
  bool from_zero = false;  // the axis begins at 0
  bool log = false;        // by logarithms, where values differ much and allow it
  Unit unit = Unit::kNumber;
};

struct HeatMap {
  std::vector<std::string> rows = {};            // the last one is drawn at the top
  std::vector<double> edges = {};                // [columns + 1] of x, increasing
  std::vector<std::vector<double>> values = {};  // [row][column]; a NaN is a gap
  double low = 0, high = 1;                      // the ends of the colours
  bool log = false;
  Unit unit = Unit::kPercent;
};

struct Bars {  // stacked, from left to right
  struct Part {
    std::string label;
    std::vector<double> values;  // [row]
  };
  std::vector<std::string> rows = {};
  std::vector<Part> parts = {};  // at most kPlotColours
};

struct Plot {
  std::string id;           // letters, digits and hyphens: the name of its file
  std::string title, hint;  // what is seen, and what good looks like
  std::string x_title, y_title;
  std::variant<Curves, HeatMap, Bars> content;
};

// An element <svg> for a page that has plot_style().
std::string draw(const Plot& plot);
// The same as a file of its own.
std::string svg_file(const Plot& plot);
// Rules of CSS, for both themes.
std::string plot_style();

// Text of any bytes as text or attribute of HTML and XML.
std::string escape_xml(std::string_view text);

}  // namespace vcas
