// Charts as SVG: a small writer that knows texts, lines and marks, and the one chart that an A/B run needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

/// Builds an SVG document. Coordinates are pixels from the upper left corner; everything is escaped and rounded to a
/// tenth, so the same chart gives the same bytes.
class Svg {
 public:
  Svg(int width, int height, std::string_view title);

  enum class Anchor { Start, Middle, End };
  struct Font {
    int size = 12;
    Anchor anchor = Anchor::Start;
    std::string_view colour = "#24292f";
    bool bold = false;
    bool upright = false;  ///< turned by a quarter, to be read from below
  };

  void rectangle(double x, double y, double width, double height, std::string_view fill, double opacity = 1);
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width = 1);
  /// An open line through points; `dash` as in stroke-dasharray, empty for a solid line.
  struct Point {
    double x = 0, y = 0;
  };
  void polyline(const std::vector<Point>& points, std::string_view colour, double width, std::string_view dash);
  /// Mark number `shape`: circle, square, triangle, diamond, then again, filled, with a white rim.
  void mark(Point at, std::size_t shape, std::string_view colour);
  void text(double x, double y, std::string_view text, const Font& font);

  /// The whole document.
  [[nodiscard]] std::string finish() const;

 private:
  int width_, height_;
  std::string body_;
};

/// Steps of 1, 2 or 5 times a power of ten that cover [low, high] with about `count` labels.
[[nodiscard]] std::vector<double> ticks(double low, double high, int count);

/// Values in run order, one line a seed.
struct WindowChart {
  std::string title, subtitle, unit;  ///< a subtitle may have several lines
  std::vector<std::string> arms;
  struct Column {
    std::string label;    ///< of the window
    std::size_t arm = 0;  ///< its colour and mark
    bool has_values = false;
    std::vector<double> by_line;
  };
  std::vector<Column> columns;
  std::vector<std::string> lines;  ///< names of the seeds
};

/// Windows side by side, each in the colour of its arm, a line per seed through them. The axis does not begin at zero
/// and says so. Columns without values break the lines.
[[nodiscard]] std::string window_chart(const WindowChart& chart);

}  // namespace lockstep::report
