#include "tools/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/utf8.h"

namespace vcas {
namespace {

constexpr double kWidth = 420, kHeight = 260, kTop = 26, kAxis = 38;
constexpr double kLetter = 7.4, kSmallLetter = 6.2;  // mean widths of wide fonts, 12 and 10 px
constexpr double kMap = 150, kLeastRow = 13, kMostRow = 26, kBar = 30;
constexpr std::size_t kMostLetters = 16, kMostLayerLetters = 25;  // of names beside a plot
constexpr int kHeats = 21;

// Blue, vermilion, green, purple, orange, sky, grey, and what stands out from the page.
// On a dark page blue and sky change places, and yellow stands out.
constexpr std::array<const char*, kPlotColours> kLight = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676", "#000000"};
constexpr std::array<const char*, kPlotColours> kDark = {
    "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#999999", "#f0e442"};
constexpr std::array<int, 11> kViridis = {0x440154, 0x482475, 0x414487, 0x355f8d,
                                          0x2a788e, 0x21918c, 0x22a884, 0x44bf70,
                                          0x7ad151, 0xbddf26, 0xfde725};

// "vit.encoder…output.dense"
std::string shorten(const std::string& text, std::size_t most = kMostLetters) {
  const std::size_t count = code_points(text), head = most / 3, tail = most - head - 1;
  if (count <= most) return text;
  return text.substr(0, bytes_of_code_points(text, head)) + "…" +
         text.substr(bytes_of_code_points(text, count - tail));
}

std::string number_text(double value, Unit unit) {
  if (unit == Unit::kPercent) return fmt::format("{:.3g}%", 100 * value);
  return std::abs(value) >= 10000 ? fmt::format("{:.4g}k", value / 1000)
                                  : fmt::format("{:.4g}", value);
}

std::string text_at(double x, double y, std::string_view attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y,
                     attributes.empty() ? "" : " ", attributes, escape_xml(text));
}

// From values to places.
class Scale {
 public:
  Scale(double low, double high, double from, double to, bool log = false)
      : low_(low), high_(high), from_(from), to_(to), log_(log) {}

  // Values beyond the ends lie on them.
  double operator()(double value) const {
    const double share =
        log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return from_ + (to_ - from_) * std::clamp(share, 0.0, 1.0);
  }

  std::vector<double> ticks() const {
    constexpr int kMost = 6;
    std::vector<double> out;
    if (log_) {
      for (double power = std::floor(std::log10(low_)); std::pow(10, power) <= high_; ++power)
        for (const int part : {1, 2, 5}) out.push_back(part * std::pow(10, power));
      std::erase_if(out, [&](double tick) { return tick < low_ || tick > high_; });
      if (out.size() > kMost)
        std::erase_if(out, [](double tick) {
          return std::abs(std::log10(tick) - std::round(std::log10(tick))) > 0.01;
        });
      return out;
    }
    const double unit = std::pow(10, std::floor(std::log10((high_ - low_) / kMost)));
    double step = unit;
    for (const int part : {2, 5, 10})
      if ((high_ - low_) / step > kMost) step = part * unit;
    for (double i = std::ceil(low_ / step - 1e-9); i * step <= high_ + 1e-9 * step; ++i)
      out.push_back(i * step + 0.0);  // never -0
    return out;
  }

 private:
  double low_, high_, from_, to_;
  bool log_;
};

// The least and the largest of what is finite; 0 and 1 of nothing, and never the same.
struct AxisRange {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(const std::vector<double>& values) {
    for (const double value : values)
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  }
  AxisRange settled() const {
    constexpr double kLeast = 1e-12;  // ticks are counted, and numbers have 53 bits
    if (low > high) return {0, 1};
    if (high - low > kLeast * std::max(std::abs(low), std::abs(high))) return *this;
    const double room = low == 0 ? 1 : std::abs(low) / 10;
    return {low - room, high + room};
  }
  AxisRange with_room(bool log) const {
    const double room = (high - low) * 0.04;
    return log ? AxisRange{low / 1.05, high * 1.05} : AxisRange{low - room, high + room};
  }
};

struct Frame {
  double left, right, top, bottom;
};

std::string x_axis(const Frame& frame, const Scale& x, const std::string& title) {
  std::string out = fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame.left,
                                frame.bottom, frame.right);
  for (const double tick : x.ticks())
    out += text_at(x(tick), frame.bottom + 15, "text-anchor=\"middle\"",
                   number_text(tick, Unit::kNumber));
  return out + text_at((frame.left + frame.right) / 2, frame.bottom + 32,
                       "class=\"name\" text-anchor=\"middle\"", title);
}

// A path through the points; NaN interrupts it.
std::string path_of(const Curve& curve, const Scale& x, const Scale& y) {
  std::string path;
  bool draws = false;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    const bool is_there = std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]);
    if (is_there)
      path += fmt::format("{}{:.1f} {:.1f}", draws ? 'L' : 'M', x(curve.x[i]), y(curve.y[i]));
    draws = is_there;
  }
  return path;
}

// Few values are measurements of their own, and a single one has no path.
std::string dots_of(const Curve& curve, const Scale& x, const Scale& y) {
  constexpr std::size_t kMostDots = 25;
  std::string out;
  for (std::size_t i = 0; curve.x.size() <= kMostDots && i < curve.x.size(); ++i)
    if (std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]))
      out += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                         curve.colour, x(curve.x[i]), y(curve.y[i]));
  return out;
}

std::string band_of(const Curve& curve, const Scale& x, const Scale& y) {
  std::string there, back;
  for (std::size_t i = 0; i < curve.low.size(); ++i) {
    if (!std::isfinite(curve.low[i]) || !std::isfinite(curve.x[i])) continue;
    const double at = x(curve.x[i]);
    there += fmt::format("{}{:.1f} {:.1f}", there.empty() ? 'M' : 'L', at, y(curve.high[i]));
    back = fmt::format("L{:.1f} {:.1f}", at, y(curve.low[i])) + back;
  }
  return there.empty() ? "" : there + back + "z";
}

// Names at the ends of curves, pushed apart until none hides another.
std::string end_labels(const Curves& content, const Frame& frame, const Scale& x, const Scale& y) {
  constexpr double kGap = 14;
  struct Label {
    double from, y, place;
    std::string name, stroke;
  };
  std::vector<Label> labels;
  for (const Curve& curve : content.curves)
    for (std::size_t i = curve.x.size(); i-- > 0;)
      if (std::isfinite(curve.y[i]) && std::isfinite(curve.x[i])) {
        const double at = y(curve.y[i]);
        labels.push_back({x(curve.x[i]), at, at, curve.label, fmt::format("s{}", curve.colour)});
        break;
      }
  for (const Curves::Level& level : content.levels)
    labels.push_back({frame.right, y(level.y), y(level.y), level.label, "level"});
  std::ranges::sort(labels, {}, &Label::y);
  for (std::size_t i = 1; i < labels.size(); ++i)
    labels[i].place = std::max(labels[i].place, labels[i - 1].place + kGap);
  double ceiling = frame.bottom;
  for (std::size_t i = labels.size(); i-- > 0; ceiling -= kGap)
    labels[i].place = ceiling = std::min(labels[i].place, ceiling);
  std::string out;
  for (const Label& label : labels)
    out += fmt::format("<path class=\"{} lead\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n",
                       label.stroke, label.from, label.y, frame.right + 10, label.place) +
           text_at(frame.right + 13, label.place + 4, "", shorten(label.name));
  return out;
}

// The widest of the names.
template <class Names>
double room_for(const Names& names, double letter, std::size_t letters_at_most = kMostLetters) {
  std::size_t most = 0;
  for (const std::string& name : names)
    most = std::max(most, code_points(shorten(name, letters_at_most)));
  return letter * static_cast<double>(most);
}

std::string draw_content(const Plot& plot, const Curves& content) {
  AxisRange x_range, y_range;
  std::vector<std::string> names, ticks;
  for (const Curve& curve : content.curves) {
    x_range.add(curve.x);
    y_range.add(curve.y);
    names.push_back(curve.label);
  }
  for (const Curves::Level& level : content.levels) {
    y_range.add({level.y});
    names.push_back(level.label);
  }
  if (content.from_zero) y_range.add({0});
  x_range = x_range.settled();
  y_range = y_range.settled();
  constexpr double kWorthLogarithms = 10;
  const bool log = content.log && y_range.low > 0 && y_range.high > kWorthLogarithms * y_range.low;
  const AxisRange room = y_range.with_room(log);
  if (!content.from_zero || y_range.low < 0) y_range = room;
  y_range.high = room.high;
  Frame frame{0, kWidth - 18 - room_for(names, kLetter), kTop, kHeight - kAxis};
  const Scale y(y_range.low, y_range.high, frame.bottom, frame.top, log);
  for (const double tick : y.ticks()) ticks.push_back(number_text(tick, content.unit));
  frame.left = 12 + room_for(ticks, kLetter);
  const Scale x(x_range.low, x_range.high, frame.left, frame.right);
  std::string out = text_at(2, 12, "class=\"name\"", plot.y_title);
  for (const double tick : y.ticks())
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame.left, y(tick),
                       frame.right) +
           text_at(frame.left - 6, y(tick) + 4, "text-anchor=\"end\"",
                   number_text(tick, content.unit));
  out += x_axis(frame, x, plot.x_title);
  for (const Curve& curve : content.curves)
    if (const std::string band = band_of(curve, x, y); !band.empty())
      out += fmt::format("<path class=\"band f{}\" d=\"{}\"/>\n", curve.colour, band);
  for (const Curves::Level& level : content.levels)
    out += fmt::format("<path class=\"level\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame.left,
                       y(level.y), frame.right);
  for (const Curve& curve : content.curves)
    out += fmt::format("<path class=\"curve s{}{}\" d=\"{}\"/>\n", curve.colour,
                       curve.dashed ? " dash" : "", path_of(curve, x, y)) +
           dots_of(curve, x, y);
  return out + end_labels(content, frame, x, y);
}

std::string heat_scale(const HeatMap& content, const Frame& frame, double top) {
  std::string out;
  const double cell = 8, left = (frame.left + frame.right - kHeats * cell) / 2;
  for (int heat = 0; heat < kHeats; ++heat)
    out += fmt::format("<path class=\"heat h{}\" d=\"M{:.1f} {:.1f}h{}v9h-{}z\"/>\n", heat,
                       left + heat * cell, top, cell, cell);
  return out +
         text_at(left - 6, top + 9, "text-anchor=\"end\"", number_text(content.low, content.unit)) +
         text_at(left + kHeats * cell + 6, top + 9, "", number_text(content.high, content.unit));
}

double row_height(const HeatMap& content) {
  return std::clamp(std::floor(kMap / static_cast<double>(content.rows.size())), kLeastRow,
                    kMostRow);
}

// All cells of a colour are one path. Neighbours of the same colour are one cell.
std::string heat_cells(const HeatMap& content, const Frame& frame, const Scale& x) {
  const Scale heat(content.low, content.high, 0, kHeats - 1, content.log);
  std::array<std::string, kHeats> paths;
  const std::size_t columns = content.edges.size() - 1;
  const double height = row_height(content);
  for (std::size_t row = 0; row < content.rows.size(); ++row) {
    const std::vector<double>& values = content.values[row];
    const double top = frame.bottom - height * static_cast<double>(row + 1);
    const auto level = [&](std::size_t column) {
      return std::isfinite(values[column]) && !(content.log && values[column] <= 0)
                 ? static_cast<int>(std::lround(heat(values[column])))
                 : -1;
    };
    for (std::size_t first = 0, last; first < columns; first = last) {
      last = first + 1;
      while (last < columns && level(last) == level(first)) ++last;
      if (level(first) < 0) continue;
      const double left = x(content.edges[first]), width = x(content.edges[last]) - left + 0.4;
      paths[level(first)] +=
          fmt::format("M{:.1f} {:.0f}h{:.1f}v{}h-{:.1f}z", left, top, width, height - 1, width);
    }
  }
  std::string out;
  for (std::size_t level = 0; level < paths.size(); ++level)
    if (!paths[level].empty())
      out += fmt::format("<path class=\"heat h{}\" d=\"{}\"/>\n", level, paths[level]);
  return out;
}

double height_of(const HeatMap& content) {
  return kTop + row_height(content) * static_cast<double>(content.rows.size()) + kAxis + 22;
}

std::string draw_content(const Plot& plot, const HeatMap& content) {
  Frame frame{12 + room_for(content.rows, kSmallLetter, kMostLayerLetters), kWidth - 46, kTop, 0};
  frame.bottom = height_of(content) - kAxis - 22;
  const Scale x(content.edges.front(), content.edges.back(), frame.left, frame.right);
  std::string out = text_at(2, 12, "class=\"name\"", plot.y_title) +
                    text_at(kWidth, 12, "class=\"name\" text-anchor=\"end\"", "last") +
                    heat_cells(content, frame, x) + x_axis(frame, x, plot.x_title);
  for (std::size_t row = 0; row < content.rows.size(); ++row) {
    const double middle =
        frame.bottom - row_height(content) * (static_cast<double>(row) + 0.5) + 3.5;
    out += text_at(frame.left - 6, middle, "class=\"small\" text-anchor=\"end\"",
                   shorten(content.rows[row], kMostLayerLetters));
    if (const double last = content.values[row].back(); std::isfinite(last))
      out += text_at(kWidth, middle, "class=\"small\" text-anchor=\"end\"",
                     number_text(last, content.unit));
  }
  return out + heat_scale(content, frame, frame.bottom + kAxis + 6);
}

constexpr int kLegendColumns = 4;

double height_of(const Bars& content) {
  return kTop + kBar * static_cast<double>(content.rows.size()) + kAxis +
         18 * std::ceil(static_cast<double>(content.parts.size()) / kLegendColumns) + 4;
}

std::string draw_content(const Plot& plot, const Bars& content) {
  std::vector<double> sums(content.rows.size(), 0.0);
  for (const Bars::Part& part : content.parts)
    for (std::size_t row = 0; row < sums.size(); ++row) sums[row] += part.values[row];
  const double most = std::max(*std::ranges::max_element(sums), 1e-9);
  Frame frame{12 + room_for(content.rows, kLetter), kWidth - 50, kTop, 0};
  frame.bottom = kTop + kBar * static_cast<double>(content.rows.size());
  const Scale x(0, most, frame.left, frame.right);
  std::string out = text_at(2, 12, "class=\"name\"", plot.y_title) + x_axis(frame, x, plot.x_title);
  for (std::size_t row = 0; row < sums.size(); ++row) {
    const double top = frame.top + kBar * static_cast<double>(row);
    out += text_at(frame.left - 6, top + 16, "text-anchor=\"end\"", shorten(content.rows[row])) +
           text_at(x(sums[row]) + 5, top + 16, "", number_text(sums[row], Unit::kNumber));
    double before = 0;
    for (std::size_t part = 0; part < content.parts.size(); ++part) {
      const double value = content.parts[part].values[row], left = x(before);
      before += value;
      if (value > 0)
        out += fmt::format(
            "<path class=\"f{}\" d=\"M{:.1f} {:.1f}H{:.1f}v20H{:.1f}z\"><title>{} {:.3g}</title>"
            "</path>\n",
            part, left, top + 2, x(before), left, escape_xml(content.parts[part].label), value);
    }
  }
  for (std::size_t part = 0; part < content.parts.size(); ++part) {
    const double left =
        8 + (kWidth - 8) / kLegendColumns * static_cast<double>(part % kLegendColumns);
    const std::size_t row = part / kLegendColumns;
    const double top = frame.bottom + kAxis + 4 + 18 * static_cast<double>(row);
    out += fmt::format("<path class=\"f{}\" d=\"M{:.1f} {:.1f}h10v10h-10z\"/>\n", part, left, top) +
           text_at(left + 15, top + 9, "", content.parts[part].label);
  }
  return out;
}

double height_of(const Curves&) { return kHeight; }

std::string draw_with(const Plot& plot, std::string_view attributes, std::string_view style) {
  return std::visit(
      [&](const auto& content) {
        return fmt::format(
            "<svg class=\"plot\" id=\"{}\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} "
            "{}\"{}>\n<title>{}</title>\n{}{}</svg>\n",
            escape_xml(plot.id), escape_xml(plot.title), kWidth, height_of(content), attributes,
            escape_xml(plot.title), style, draw_content(plot, content));
      },
      plot.content);
}

std::string colour_rules(const std::array<const char*, kPlotColours>& colours, const char* ink,
                         const char* grid) {
  std::string out = fmt::format(
      ".plot text{{fill:{0}}}.plot .axis,.plot .level{{stroke:{0}}}.plot .grid{{stroke:{1}}}", ink,
      grid);
  for (std::size_t i = 0; i < colours.size(); ++i)
    out += fmt::format(".s{0}{{stroke:{1}}}.f{0}{{fill:{1}}}", i, colours[i]);
  return out;
}

// Between two neighbours of kViridis, or one of them.
int heat_colour(int heat) {
  const std::size_t at = static_cast<std::size_t>(heat) / 2;
  if (heat % 2 == 0) return kViridis[at];
  int colour = 0;
  for (const int shift : {0, 8, 16})
    colour |= (((kViridis[at] >> shift & 255) + (kViridis[at + 1] >> shift & 255)) / 2) << shift;
  return colour;
}

}  // namespace

std::string draw(const Plot& plot) { return draw_with(plot, "", ""); }

std::string svg_file(const Plot& plot) {
  return draw_with(plot, " xmlns=\"http://www.w3.org/2000/svg\"",
                   "<style>" + plot_style() + "</style>\n");
}

std::string plot_style() {
  std::string style =
      ".plot text{font:12px system-ui,sans-serif}.plot .small{font-size:10px}"
      ".plot .name{font-weight:600}.plot .grid,.plot .axis{fill:none}"
      ".curve{fill:none;stroke-width:2;stroke-linejoin:round}.dash{stroke-dasharray:6 4}"
      ".level{fill:none;stroke-width:1.5;stroke-dasharray:2 3}"
      ".lead{fill:none;stroke-width:1;stroke-dasharray:2 "
      "2}.band{fill-opacity:.16}.heat{shape-rendering:crispEdges}";
  for (int heat = 0; heat < kHeats; ++heat)
    style += fmt::format(".h{}{{fill:#{:06x}}}", heat, heat_colour(heat));
  style += colour_rules(kLight, "#1f2328", "#dfe3e8");
  return style + "@media (prefers-color-scheme:dark){" + colour_rules(kDark, "#e6edf3", "#343b44") +
         "}";
}

std::string escape_xml(std::string_view text) {
  // JSON text is valid UTF-8 whatever the bytes were.
  using nlohmann::json;
  const std::string valid =
      json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  constexpr std::string_view kMarks = "&<>\"'";
  constexpr const char* kNames[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : valid)
    if (const std::size_t mark = kMarks.find(c); mark != kMarks.npos)
      out += kNames[mark];
    else
      out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
  return out;
}

}  // namespace vcas
