// The chart of the windows in run order.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "report/svg.hpp"

namespace lockstep::report {
namespace {

constexpr double kLeft = 72, kTop = 96, kBottom = 56, kRight = 150, kPlotHeight = 280;
constexpr double kColumn = 92, kNarrowColumn = 44;
constexpr std::size_t kManyColumns = 10;
// Colours of Okabe and Ito, which people who confuse red and green can tell apart.
constexpr std::array<std::string_view, 7> kArmColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#7f7f7f"};
constexpr std::array<std::string_view, 5> kDashes{"", "6 3", "2 3", "8 3 2 3", "1 2"};
constexpr std::string_view kGrid = "#e3e6ea", kMuted = "#57606a", kSeedLine = "#6e7781";

std::string_view colour_of(std::size_t arm) {
  return kArmColours.at(arm % kArmColours.size());
}

std::string label(double value, double step) {
  const int digits = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

constexpr double kLegendTop = kTop + 8, kLegendLine = 20, kLegendGap = 30;

/// Where the lists of arms and seeds end, with a margin.
double legend_end(const WindowChart& chart) {
  return kLegendTop + kLegendGap + kLegendLine * static_cast<double>(chart.arms.size() + chart.lines.size()) + 16;
}

class Painter {
 public:
  explicit Painter(const WindowChart& chart)
      : chart_(chart),
        column_(chart.columns.size() > kManyColumns ? kNarrowColumn : kColumn),
        plot_width_(std::max(column_ * static_cast<double>(chart.columns.size()), 4 * kColumn)),
        svg_(static_cast<int>(kLeft + plot_width_ + kRight),
             static_cast<int>(std::max(kTop + kPlotHeight + kBottom, legend_end(chart))), chart.title) {
    column_ = plot_width_ / static_cast<double>(std::max<std::size_t>(chart.columns.size(), 1));
    scale();
  }

  std::string paint() {
    heading();
    bands();
    axis();
    for (std::size_t i = 0; i < chart_.lines.size(); ++i) series(i);
    for (std::size_t i = 0; i < chart_.lines.size(); ++i) marks(i);
    legend();
    return svg_.finish();
  }

 private:
  void scale() {
    double low = 0;
    double high = 1;
    bool any = false;
    for (const WindowChart::Column& column : chart_.columns) {
      if (!column.has_values) continue;
      for (const double value : column.by_line) {
        low = any ? std::min(low, value) : value;
        high = any ? std::max(high, value) : value;
        any = true;
      }
    }
    const double room = std::max(high - low, high * 0.01) * 0.08;
    ticks_ = ticks(std::max(low - room, 0.0), high + room, 6);
  }

  [[nodiscard]] double x(std::size_t column) const { return kLeft + column_ * (static_cast<double>(column) + 0.5); }
  [[nodiscard]] double y(double value) const {
    return kTop + kPlotHeight * (1 - (value - ticks_.front()) / (ticks_.back() - ticks_.front()));
  }

  void heading() {
    svg_.text(kLeft, 28, chart_.title, {.size = 17, .bold = true});
    svg_.text(kLeft, 50, chart_.subtitle, {.size = 12, .colour = kMuted});
    const bool from_zero = ticks_.front() == 0;
    svg_.text(kLeft, 82, chart_.unit + (from_zero ? "" : " (the axis does not begin at 0)"),
              {.size = 12, .colour = kMuted});
  }

  void bands() {
    for (std::size_t i = 0; i < chart_.columns.size(); ++i) {
      const WindowChart::Column& column = chart_.columns[i];
      svg_.rectangle(x(i) - column_ / 2 + 1, kTop, column_ - 2, kPlotHeight, colour_of(column.arm), 0.07);
      svg_.text(x(i), kTop + kPlotHeight + 20, column.label,
                {.size = 13, .anchor = Svg::Anchor::Middle, .colour = colour_of(column.arm), .bold = true});
    }
    svg_.text(kLeft + plot_width_ / 2, kTop + kPlotHeight + 42, "windows in run order",
              {.size = 12, .anchor = Svg::Anchor::Middle, .colour = kMuted});
  }

  void axis() {
    for (const double tick : ticks_) {
      svg_.line(kLeft, y(tick), kLeft + plot_width_, y(tick), kGrid);
      svg_.text(kLeft - 8, y(tick) + 4, label(tick, ticks_[1] - ticks_[0]),
                {.size = 12, .anchor = Svg::Anchor::End, .colour = kMuted});
    }
  }

  void series(std::size_t line) {
    std::vector<Svg::Point> points;
    const auto end = [&] {
      svg_.polyline(points, kSeedLine, 1.5, kDashes.at(line % kDashes.size()));
      points.clear();
    };
    for (std::size_t i = 0; i < chart_.columns.size(); ++i) {
      if (chart_.columns[i].has_values) {
        points.push_back({x(i), y(chart_.columns[i].by_line[line])});
      } else {
        end();
      }
    }
    end();
  }

  void marks(std::size_t line) {
    for (std::size_t i = 0; i < chart_.columns.size(); ++i) {
      const WindowChart::Column& column = chart_.columns[i];
      if (column.has_values) svg_.mark({x(i), y(column.by_line[line])}, column.arm, colour_of(column.arm));
    }
  }

  void legend() {
    const double left = kLeft + plot_width_ + 18;
    double at = kLegendTop;
    svg_.text(left, at, "arm", {.size = 12, .colour = kMuted, .bold = true});
    for (std::size_t i = 0; i < chart_.arms.size(); ++i) {
      at += kLegendLine;
      svg_.mark({left + 8, at - 4}, i, colour_of(i));
      svg_.text(left + 32, at, chart_.arms[i], {.size = 12});
    }
    at += kLegendGap;
    svg_.text(left, at, "seed", {.size = 12, .colour = kMuted, .bold = true});
    for (std::size_t i = 0; i < chart_.lines.size(); ++i) {
      at += kLegendLine;
      svg_.polyline({{left, at - 4}, {left + 26, at - 4}}, kSeedLine, 1.5, kDashes.at(i % kDashes.size()));
      svg_.text(left + 32, at, chart_.lines[i], {.size = 12});
    }
  }

  const WindowChart& chart_;
  double column_, plot_width_;
  std::vector<double> ticks_;
  Svg svg_;
};

}  // namespace

std::string window_chart(const WindowChart& chart) {
  return Painter(chart).paint();
}

}  // namespace lockstep::report
