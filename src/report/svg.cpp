#include "report/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/printable.hpp"

namespace lockstep::report {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {  // control characters are not allowed in XML
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

std::string points_text(const std::vector<Svg::Point>& points) {
  std::string out;
  for (const Svg::Point& point : points)
    out += fmt::format("{}{:.1f},{:.1f}", out.empty() ? "" : " ", point.x, point.y);
  return out;
}

}  // namespace

Svg::Svg(int width, int height, std::string_view title) : width_(width), height_(height) {
  body_ = fmt::format("<title>{}</title>\n", escaped(title));
  // A background of its own: a page may be dark.
  rectangle(0, 0, width, height, "#ffffff");
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view fill, double opacity) {
  body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"", x, y, width,
                       height, fill);
  body_ += opacity < 1 ? fmt::format(" fill-opacity=\"{:.2f}\"/>\n", opacity) : std::string("/>\n");
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view colour, double width) {
  body_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{:.1f}\"/>\n", x1, y1,
      x2, y2, colour, width);
}

void Svg::polyline(const std::vector<Point>& points, std::string_view colour, double width, std::string_view dash) {
  if (points.size() < 2) return;
  body_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\"",
                       points_text(points), colour, width);
  body_ += dash.empty() ? std::string("/>\n") : fmt::format(" stroke-dasharray=\"{}\"/>\n", dash);
}

void Svg::mark(Point at, std::size_t shape, std::string_view colour) {
  constexpr double kSize = 5;
  const std::string style = fmt::format("fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1.2\"/>\n", colour);
  const auto [x, y] = at;
  switch (shape % 4) {
    case 0:
      body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" {}", x, y, kSize, style);
      return;
    case 1:
      body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}", x - kSize + 0.5,
                           y - kSize + 0.5, 2 * kSize - 1, 2 * kSize - 1, style);
      return;
    case 2:
      body_ += fmt::format(
          "<polygon points=\"{}\" {}",
          points_text({{x, y - kSize - 1}, {x + kSize + 0.5, y + kSize - 1}, {x - kSize - 0.5, y + kSize - 1}}), style);
      return;
    default:
      body_ += fmt::format(
          "<polygon points=\"{}\" {}",
          points_text({{x, y - kSize - 1}, {x + kSize + 1, y}, {x, y + kSize + 1}, {x - kSize - 1, y}}), style);
  }
}

void Svg::text(double x, double y, std::string_view text, const Font& font) {
  constexpr std::array<std::string_view, 3> kAnchors{"start", "middle", "end"};
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\"{}{}>{}</text>\n", x, y,
      font.size, kAnchors.at(static_cast<std::size_t>(font.anchor)), font.colour,
      font.bold ? " font-weight=\"600\"" : "",
      font.upright ? fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y) : std::string(), escaped(text));
}

std::string Svg::finish() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n{2}</svg>\n",
      width_, height_, body_);
}

std::vector<double> ticks(double low, double high, int count) {
  const double raw = std::max(high - low, std::abs(high) * 1e-6 + 1e-12) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (power * factor >= raw * 0.999) step = power * factor;
  }
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  std::vector<double> out;
  for (double i = first; i <= std::max(last, first + 1); ++i) out.push_back(i * step);
  return out;
}

}  // namespace lockstep::report
