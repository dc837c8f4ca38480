// The drawing of plots: what is in the SVG.
#include <cmath>
#include <limits>
#include <regex>

#include "tests/support/catch.h"
#include "tools/report/plot.h"

using namespace vcas;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

bool contains(const std::string& text, const std::string& part) { return count(text, part) > 0; }

// The places of the first path of a class.
std::vector<std::pair<double, double>> path_of(const std::string& svg, const std::string& kind) {
  std::smatch path;
  std::vector<std::pair<double, double>> places;
  if (!std::regex_search(svg, path, std::regex("class=\"" + kind + "\" d=\"([^\"]*)\"")))
    return places;
  const std::string d = path[1];
  const std::regex place("[ML]([-0-9.]+) ([-0-9.]+)");
  for (auto at = std::sregex_iterator(d.begin(), d.end(), place); at != std::sregex_iterator();
       ++at)
    places.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
  return places;
}

Plot curves(const Curves& content) {
  return {.id = "a",
          .title = "Title",
          .hint = "",
          .x_title = "step",
          .y_title = "loss",
          .content = content};
}

}  // namespace

TEST_CASE("report: curves go through their values, and NaN interrupts them") {
  Curve curve{.label = "run", .x = {0, 1, 2, 3, 4}, .y = {0, 4, kNone, 2, 0}};
  const std::string svg = draw(curves({.curves = {curve}}));
  const auto places = path_of(svg, "curve s0");
  REQUIRE(places.size() == 4);
  CHECK(count(svg.substr(svg.find("class=\"curve s0\""), 60), "M") == 2);
  CHECK(places[1].second < places[2].second);  // larger is higher
  CHECK(std::abs(places[0].second - places[3].second) < 1e-9);
  const double middle = (places[0].second + places[1].second) / 2;
  CHECK(std::abs(places[2].second - middle) <= 0.1);  // the places have one decimal
  CHECK(std::abs(places[2].first -
                 (places[0].first + 0.75 * (places[3].first - places[0].first))) <= 0.1);
  CHECK(contains(svg, ">run</text>"));
  CHECK(contains(svg, "<title>Title</title>"));
  CHECK(contains(svg, "aria-label=\"Title\""));
  CHECK_FALSE(contains(svg, "nan"));
}

TEST_CASE("report: logarithms make equal ratios equal distances") {
  const Curve curve{.label = "run", .x = {0, 1, 2}, .y = {0.01, 1, 100}};
  const auto places = path_of(draw(curves({.curves = {curve}, .log = true})), "curve s0");
  REQUIRE(places.size() == 3);
  CHECK(std::abs(2 * places[1].second - places[0].second - places[2].second) <= 0.2);
  // There is none of 0.
  const Curve with_zero{.label = "run", .x = {0, 1, 2}, .y = {0, 50, 100}};
  const auto linear = path_of(draw(curves({.curves = {with_zero}, .log = true})), "curve s0");
  CHECK(std::abs(2 * linear[1].second - linear[0].second - linear[2].second) <= 0.2);
}

TEST_CASE("report: labels at the ends of curves do not hide each other") {
  Curves content;
  for (int i = 0; i < 8; ++i)
    content.curves.push_back(
        {.label = "run" + std::to_string(i), .colour = i, .x = {0, 1}, .y = {0, 1 + i * 1e-3}});
  const std::string svg = draw(curves(content));
  std::vector<double> heights;
  for (int i = 0; i < 8; ++i) {
    std::smatch label;
    REQUIRE(std::regex_search(svg, label,
                              std::regex("y=\"([-0-9.]+)\">run" + std::to_string(i) + "</text>")));
    heights.push_back(std::stod(label[1]));
  }
  std::ranges::sort(heights);
  for (std::size_t i = 1; i < heights.size(); ++i) CHECK(heights[i] - heights[i - 1] >= 13.9);
  CHECK(heights.front() > 0);
}

TEST_CASE("report: plots of one value, of none and of equal values are drawn") {
  for (const std::vector<double>& y :
       std::vector<std::vector<double>>{{1, 1},
                                        {0, 0},
                                        {kNone, 2},
                                        {kNone, kNone},
                                        {1e300, -1e300},
                                        {-1, 1e-300},
                                        {0.6931471805599453, 0.6931471805599454}}) {
    const std::string svg = draw(curves({.curves = {{.label = "run", .x = {3, 3}, .y = y}}}));
    CHECK_FALSE(contains(svg, "nan"));
    CHECK_FALSE(contains(svg, "inf"));
  }
}

TEST_CASE("report: cells of a heat map have the colours of their values") {
  HeatMap map{
      .rows = {"bottom", "top"}, .edges = {0, 10, 20, 40}, .values = {{0, 0, 1}, {0.5, kNone, 2}}};
  const std::string svg = draw({.id = "a",
                                .title = "Title",
                                .hint = "",
                                .x_title = "step",
                                .y_title = "block",
                                .content = map});
  const auto low = path_of(svg, "heat h0"), high = path_of(svg, "heat h20"),
             half = path_of(svg, "heat h10");
  REQUIRE(low.size() == 1);   // equal neighbours are one cell
  REQUIRE(high.size() == 2);  // beyond the end is the end
  REQUIRE(half.size() == 1);
  CHECK(low[0].second > half[0].second);
  CHECK(low[0].first == half[0].first);
  CHECK(contains(svg, ">100%</text>"));
}

TEST_CASE("report: text of any bytes is escaped") {
  CHECK(escape_xml("a<b>&\"'c") == "a&lt;b&gt;&amp;&quot;&#39;c");
  CHECK(escape_xml("\xff\x01 \xc3\xa9") == "\xef\xbf\xbd  \xc3\xa9");
  const std::string svg =
      svg_file(curves({.curves = {{.label = "<script>", .x = {0, 1}, .y = {0, 1}}}}));
  CHECK_FALSE(contains(svg, "<script>"));
  CHECK(contains(svg, "&lt;script&gt;"));
  CHECK(contains(svg, "xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(contains(svg, "prefers-color-scheme:dark"));
}
