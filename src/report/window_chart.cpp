// The chart of the windows in run order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/svg.hpp"

namespace lockstep::report {
namespace {

constexpr double kPlotHeight = 280, kMargin = 16;
constexpr double kColumn = 92, kNarrowColumn = 44;
constexpr std::size_t kManyColumns = 10;
// Colours of Okabe and Ito, which people who confuse red and green can tell apart.
constexpr std::array<std::string_view, 7> kArmColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#7f7f7f"};
constexpr std::array<std::string_view, 5> kDashes{"", "6 3", "2 3", "8 3 2 3", "1 2"};
// The dashes again for every five seeds, in another colour that is no arm's.
constexpr std::array<std::string_view, 4> kSeedColours{"#6e7781", "#1f2328", "#8250df", "#9a6700"};
constexpr std::string_view kGrid = "#e3e6ea", kMuted = "#57606a";
constexpr int kTitleSize = 17, kTextSize = 12, kLabelSize = 13;
constexpr double kTitleLine = 22, kTextLine = 17, kLegendLine = 20, kLegendGap = 30, kLegendMark = 32;

std::string_view colour_of(std::size_t arm) {
  return kArmColours.at(arm % kArmColours.size());
}

std::string_view seed_colour(std::size_t seed) {
  return kSeedColours.at(seed / kDashes.size() % kSeedColours.size());
}

std::string label(double value, double step) {
  const double digits = std::clamp(-std::floor(std::log10(step) + 1e-9), 0.0, 12.0);
  return fmt::format("{:.{}f}", value, static_cast<int>(digits));
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

/// About how wide a text is; characters of the usual fonts are 0.6 of their size on average, bold ones wider.
double width_of(std::string_view text, int size, bool bold = false) {
  return static_cast<double>(std::ranges::count_if(text, starts_character)) * size * (bold ? 0.68 : 0.61);
}

/// The text in lines that are no wider than `width`, cut at spaces, inside words that are wider, and at each '\n'.
std::vector<std::string> wrapped(std::string_view text, double width, int size, bool bold = false) {
  std::vector<std::string> lines(1);
  std::size_t space = 0;  // where the last line can be cut; 0: nowhere
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
      space = 0;
      continue;
    }
    if (starts_character(c) && !lines.back().empty() && width_of(lines.back(), size, bold) + size > width) {
      std::string rest = space > 0 ? lines.back().substr(space + 1) : std::string();
      if (space > 0) lines.back().resize(space);
      lines.push_back(std::move(rest));
      space = 0;
    }
    if (c == ' ') space = lines.back().size();
    lines.back() += c;
  }
  return lines;
}

double longest(const std::vector<std::string>& texts, int size, bool bold = false) {
  double out = 0;
  for (const std::string& text : texts) out = std::max(out, width_of(text, size, bold));
  return out;
}

/// Where everything is; margins follow from the texts in them.
struct Layout {
  explicit Layout(const WindowChart& chart, const std::vector<std::string>& tick_labels) {
    const std::size_t columns = std::max<std::size_t>(chart.columns.size(), 1);
    left = std::max(56.0, longest(tick_labels, kTextSize)) + kMargin;
    plot_width =
        std::max((columns > kManyColumns ? kNarrowColumn : kColumn) * static_cast<double>(columns), 4 * kColumn);
    column = plot_width / static_cast<double>(columns);
    std::vector<std::string> names = chart.arms;
    names.insert(names.end(), chart.lines.begin(), chart.lines.end());
    legend_left = left + plot_width + 18;
    width = legend_left + kLegendMark + std::max(70.0, longest(names, kTextSize)) + kMargin;
    title = wrapped(chart.title, width - left - kMargin, kTitleSize, true);
    subtitle = wrapped(chart.subtitle, width - left - kMargin, kTextSize);
    unit_at =
        28 + kTitleLine * static_cast<double>(title.size()) + kTextLine * static_cast<double>(subtitle.size()) + 15;
    top = unit_at + 14;
    std::vector<std::string> labels;
    for (const WindowChart::Column& window : chart.columns) labels.push_back(window.label);
    const double label_width = longest(labels, kLabelSize, true);
    upright = label_width + 6 > column;
    under_labels = top + kPlotHeight + (upright ? 14 + label_width : 20) + 22;
    const double legend_end =
        top + 8 + kLegendGap + kLegendLine * static_cast<double>(chart.arms.size() + chart.lines.size()) + kMargin;
    height = std::max(under_labels + 14, legend_end);
  }

  double left, plot_width, column, legend_left, width, unit_at, top, under_labels, height;
  std::vector<std::string> title, subtitle;
  bool upright = false;  ///< labels of windows are turned by a quarter, for want of width
};

/// Ticks that cover all values, with some room.
std::vector<double> ticks_of(const WindowChart& chart) {
  double low = 0;
  double high = 1;
  bool any = false;
  for (const WindowChart::Column& column : chart.columns) {
    if (!column.has_values) continue;
    for (const double value : column.by_line) {
      low = any ? std::min(low, value) : value;
      high = any ? std::max(high, value) : value;
      any = true;
    }
  }
  const double room = std::max(high - low, high * 0.01) * 0.08;
  return ticks(std::max(low - room, 0.0), high + room, 6);
}

std::vector<std::string> labels_of(const std::vector<double>& ticks) {
  std::vector<std::string> out;
  out.reserve(ticks.size());
  for (const double tick : ticks) out.push_back(label(tick, ticks[1] - ticks[0]));
  return out;
}

class Painter {
 public:
  explicit Painter(const WindowChart& chart)
      : chart_(chart),
        ticks_(ticks_of(chart)),
        tick_labels_(labels_of(ticks_)),
        at_(chart, tick_labels_),
        svg_(static_cast<int>(at_.width), static_cast<int>(at_.height), chart.title) {}

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
  [[nodiscard]] double x(std::size_t column) const {
    return at_.left + at_.column * (static_cast<double>(column) + 0.5);
  }
  [[nodiscard]] double y(double value) const {
    return at_.top + kPlotHeight * (1 - (value - ticks_.front()) / (ticks_.back() - ticks_.front()));
  }

  void heading() {
    double line = 28;
    for (const std::string& text : at_.title) {
      svg_.text(at_.left, line, text, {.size = kTitleSize, .bold = true});
      line += kTitleLine;
    }
    for (const std::string& text : at_.subtitle) {
      svg_.text(at_.left, line, text, {.size = kTextSize, .colour = kMuted});
      line += kTextLine;
    }
    const bool from_zero = ticks_.front() == 0;
    svg_.text(at_.left, at_.unit_at, chart_.unit + (from_zero ? "" : " (the axis does not begin at 0)"),
              {.size = kTextSize, .colour = kMuted});
  }

  void bands() {
    const double bottom = at_.top + kPlotHeight;
    for (std::size_t i = 0; i < chart_.columns.size(); ++i) {
      const WindowChart::Column& column = chart_.columns[i];
      svg_.rectangle(x(i) - at_.column / 2 + 1, at_.top, at_.column - 2, kPlotHeight, colour_of(column.arm), 0.07);
      Svg::Font font{.size = kLabelSize, .anchor = Svg::Anchor::Middle, .colour = colour_of(column.arm), .bold = true};
      if (at_.upright) {
        font.anchor = Svg::Anchor::End;
        font.upright = true;
        svg_.text(x(i) + 5, bottom + 10, column.label, font);
      } else {
        svg_.text(x(i), bottom + 20, column.label, font);
      }
    }
    svg_.text(at_.left + at_.plot_width / 2, at_.under_labels, "windows in run order",
              {.size = kTextSize, .anchor = Svg::Anchor::Middle, .colour = kMuted});
  }

  void axis() {
    for (std::size_t i = 0; i < ticks_.size(); ++i) {
      svg_.line(at_.left, y(ticks_[i]), at_.left + at_.plot_width, y(ticks_[i]), kGrid);
      svg_.text(at_.left - 8, y(ticks_[i]) + 4, tick_labels_[i],
                {.size = kTextSize, .anchor = Svg::Anchor::End, .colour = kMuted});
    }
  }

  void series(std::size_t line) {
    std::vector<Svg::Point> points;
    const auto end = [&] {
      svg_.polyline(points, seed_colour(line), 1.5, kDashes.at(line % kDashes.size()));
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
    const double left = at_.legend_left;
    double at = at_.top + 8;
    svg_.text(left, at, "arm", {.size = kTextSize, .colour = kMuted, .bold = true});
    for (std::size_t i = 0; i < chart_.arms.size(); ++i) {
      at += kLegendLine;
      svg_.mark({left + 8, at - 4}, i, colour_of(i));
      svg_.text(left + kLegendMark, at, chart_.arms[i], {.size = kTextSize});
    }
    at += kLegendGap;
    svg_.text(left, at, "seed", {.size = kTextSize, .colour = kMuted, .bold = true});
    for (std::size_t i = 0; i < chart_.lines.size(); ++i) {
      at += kLegendLine;
      svg_.polyline({{left, at - 4}, {left + 26, at - 4}}, seed_colour(i), 1.5, kDashes.at(i % kDashes.size()));
      svg_.text(left + kLegendMark, at, chart_.lines[i], {.size = kTextSize});
    }
  }

  const WindowChart& chart_;
  std::vector<double> ticks_;
  std::vector<std::string> tick_labels_;
  Layout at_;
  Svg svg_;
};

}  // namespace

std::string window_chart(const WindowChart& chart) {
  return Painter(chart).paint();
}

}  // namespace lockstep::report
