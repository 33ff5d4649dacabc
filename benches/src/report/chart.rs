//! Plots as inline SVG, by hand: bars with their spread, and lines.

use super::text::number;
use super::xml::Xml;

/// Pixels; the page scales them.
const WIDTH: f64 = 760.0;
const BAR_HEIGHT: f64 = 22.0;
const LABEL_WIDTH: f64 = 330.0;
const VALUE_WIDTH: f64 = 90.0;
const PLOT_HEIGHT: f64 = 300.0;
const MARGIN_LEFT: f64 = 60.0;
const MARGIN_BOTTOM: f64 = 40.0;
const MARGIN_TOP: f64 = 10.0;
const LEGEND_LINE: f64 = 18.0;
/// Colours that are told apart by most people, over white and over black.
const COLOURS: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f00", "#7f7f7f",
];

/// One bar.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    /// The least and the most of all runs.
    pub(super) spread: (f64, f64),
}

/// One line.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Points that are marked as failed rather than joined.
    pub(super) failed: Vec<(f64, f64)>,
}

/// How a value becomes a place on an axis.
#[derive(Clone, Copy)]
pub(super) enum Axis {
    /// Even.
    Linear,
    /// Each factor of ten is as long.
    Log,
    /// A quantile: each nine is as long, and the maximum is half a nine beyond the last.
    Nines {
        /// The highest quantile below 1.
        last: f64,
    },
}

impl Axis {
    fn place(self, value: f64) -> f64 {
        match self {
            Axis::Linear => value,
            Axis::Log => value.max(1e-6).log10(),
            Axis::Nines { last } if value >= 1.0 => -(1.0 - last).log10() + 0.5,
            Axis::Nines { .. } => -(1.0 - value).log10(),
        }
    }

    /// Values that get a line and a label, between these.
    fn ticks(self, least: f64, most: f64) -> Vec<(f64, String)> {
        let plain = |value: f64| (value, format!("{value}"));
        match self {
            Axis::Linear => {
                let step = 10f64.powf(((most - least).max(1e-9) / 5.0).log10().ceil());
                let step = if (most - least) / step < 3.0 {
                    step / 2.0
                } else {
                    step
                };
                let first = (least / step).ceil() as i64;
                let last = (most / step).floor() as i64;
                let tick = |at| at as f64 * step;
                (first..=last)
                    .map(|at| (tick(at), number(tick(at), usize::from(step < 1.0))))
                    .collect()
            }
            Axis::Log => (-4..6)
                .flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(exponent)))
                .filter(|value| (least..=most).contains(value))
                // 0.30000000000000004 and its like.
                .map(|value| (value, format!("{}", (value * 1e6).round() / 1e6)))
                .collect(),
            Axis::Nines { last } => [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
                .into_iter()
                .filter(|&quantile| quantile <= last)
                .map(|quantile| (quantile, format!("p{}", (quantile * 1e5).round() / 1e3)))
                .chain([(1.0, "max".to_owned())])
                .map(|(value, label)| (plain(value).0, label))
                .collect(),
        }
    }
}

/// Bars from 0 on, each with its value and the range of its runs.
pub(super) fn bars(xml: &mut Xml, digits: usize, bars: &[Bar]) {
    let most = bars.iter().map(|bar| bar.spread.1.max(bar.value));
    let most = most.fold(0.0, f64::max).max(1e-12);
    let room = WIDTH - LABEL_WIDTH - VALUE_WIDTH;
    let place = |value: f64| LABEL_WIDTH + value / most * room;
    let height = BAR_HEIGHT * bars.len() as f64 + 6.0;
    svg(xml, height, |xml| {
        for (at, bar) in bars.iter().enumerate() {
            let middle = BAR_HEIGHT * (at as f64 + 0.5) + 3.0;
            label(xml, LABEL_WIDTH - 8.0, middle + 4.0, "end", &bar.label);
            let width = (place(bar.value) - LABEL_WIDTH).max(0.5);
            let (top, thick) = (middle - 7.0, 14.0);
            xml.element(
                "rect",
                &[
                    ("x", &LABEL_WIDTH),
                    ("y", &top),
                    ("width", &round(width)),
                    ("height", &thick),
                    ("fill", &COLOURS[0]),
                ],
                |xml| {
                    let (least, most) = bar.spread;
                    let runs = format!("{} to {}", number(least, digits), number(most, digits));
                    xml.words("title", &[], format!("{}: {runs}", bar.label));
                },
            );
            let (from, to) = (place(bar.spread.0), place(bar.spread.1));
            line(xml, (from, middle), (to, middle), "spread");
            for end in [from, to] {
                line(xml, (end, middle - 4.0), (end, middle + 4.0), "spread");
            }
            let end = place(bar.value.max(bar.spread.1)) + 6.0;
            label(xml, end, middle + 4.0, "start", &number(bar.value, digits));
        }
    });
}

/// Lines over both axes, with a level line at `bound`.
pub(super) fn lines(
    xml: &mut Xml,
    titles: [&str; 2],
    axes: [Axis; 2],
    series: &[Series],
    bound: Option<f64>,
) {
    let all = || series.iter().flat_map(|one| one.points.iter().chain(&one.failed));
    let xs = extent(all().map(|point| point.0), false);
    let ys = all().map(|point| point.1).chain(bound);
    let ys = extent(ys, true);
    let plot_right = WIDTH - 15.0;
    let plot_bottom = MARGIN_TOP + PLOT_HEIGHT;
    let x = |value| round(scaled(axes[0], xs, value, MARGIN_LEFT, plot_right));
    let y = |value| round(scaled(axes[1], ys, value, plot_bottom, MARGIN_TOP));
    let height = plot_bottom + MARGIN_BOTTOM + LEGEND_LINE * series.len() as f64 + 8.0;
    svg(xml, height, |xml| {
        for (value, text) in axes[0].ticks(xs.0, xs.1) {
            line(xml, (x(value), MARGIN_TOP), (x(value), plot_bottom), "grid");
            label(xml, x(value), plot_bottom + 15.0, "middle", &text);
        }
        for (value, text) in axes[1].ticks(ys.0, ys.1) {
            line(xml, (MARGIN_LEFT, y(value)), (plot_right, y(value)), "grid");
            label(xml, MARGIN_LEFT - 6.0, y(value) + 4.0, "end", &text);
        }
        label(xml, plot_right, plot_bottom + 32.0, "end", titles[0]);
        label(xml, MARGIN_LEFT, plot_bottom + 32.0, "start", titles[1]);
        if let Some(bound) = bound {
            line(xml, (MARGIN_LEFT, y(bound)), (plot_right, y(bound)), "bound");
        }
        for (at, one) in series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let dash = if at < COLOURS.len() { "none" } else { "5 3" };
            let points: Vec<String> = one
                .points
                .iter()
                .map(|point| format!("{},{}", x(point.0), y(point.1)))
                .collect();
            let style: [(&'static str, &dyn std::fmt::Display); 3] = [
                ("stroke", &colour),
                ("stroke-dasharray", &dash),
                ("fill", &"none"),
            ];
            let path = points.join(" ");
            xml.leaf("polyline", &[("points", &path), style[0], style[1], style[2]]);
            for point in &one.points {
                let (cx, cy) = (x(point.0), y(point.1));
                xml.leaf(
                    "circle",
                    &[("cx", &cx), ("cy", &cy), ("r", &2.5), ("fill", &colour)],
                );
            }
            for point in &one.failed {
                let (cx, cy) = (x(point.0), y(point.1));
                for (from, to) in [(-4.0, 4.0), (4.0, -4.0)] {
                    line(xml, (cx - 4.0, cy + from), (cx + 4.0, cy + to), "failed");
                }
            }
            let legend = plot_bottom + MARGIN_BOTTOM + LEGEND_LINE * (at as f64 + 0.7);
            let (from, to) = (MARGIN_LEFT, MARGIN_LEFT + 24.0);
            xml.leaf(
                "polyline",
                &[
                    (
                        "points",
                        &format!("{from},{} {to},{}", legend - 4.0, legend - 4.0),
                    ),
                    style[0],
                    style[1],
                    style[2],
                ],
            );
            label(xml, to + 8.0, legend, "start", &one.label);
        }
    });
}

/// The least and the most, apart from each other.
fn extent(values: impl Iterator<Item = f64>, with_room: bool) -> (f64, f64) {
    let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    match (least, most) {
        (least, _) if !least.is_finite() => (0.1, 1.0),
        (least, most) if least >= most => (least * 0.5, least * 1.5 + 1e-3),
        (least, most) if with_room => (least * 0.9, most * 1.1),
        extent => extent,
    }
}

fn scaled(axis: Axis, (least, most): (f64, f64), value: f64, from: f64, to: f64) -> f64 {
    let (least, most) = (axis.place(least), axis.place(most));
    from + (axis.place(value) - least) / (most - least) * (to - from)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn svg(xml: &mut Xml, height: f64, content: impl FnOnce(&mut Xml)) {
    let view = format!("0 0 {WIDTH} {height}");
    // No width and height: the page's style makes it as wide as it may be.
    xml.element("svg", &[("viewBox", &view), ("role", &"img")], content);
}

fn label(xml: &mut Xml, x: f64, y: f64, anchor: &str, text: &str) {
    let (x, y) = (round(x), round(y));
    xml.words("text", &[("x", &x), ("y", &y), ("text-anchor", &anchor)], text);
}

fn line(xml: &mut Xml, from: (f64, f64), to: (f64, f64), class: &str) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(round);
    xml.leaf(
        "line",
        &[
            ("x1", &x1),
            ("y1", &y1),
            ("x2", &x2),
            ("y2", &y2),
            ("class", &class),
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of this attribute, of all elements of this name.
    fn values(text: &str, element: &str, attribute: &str) -> Vec<f64> {
        let parsed = roxmltree::Document::parse(text).expect("well-formed");
        let elements = parsed.descendants().filter(|node| node.has_tag_name(element));
        elements
            .filter_map(|node| node.attribute(attribute))
            .map(|value| value.parse().expect("a number"))
            .collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |value| Bar {
            label: format!("{value} <&>"),
            value,
            spread: (value * 0.5, value),
        };
        let mut xml = Xml::default();
        bars(&mut xml, 1, &[bar(10.0), bar(5.0), bar(0.0)]);
        let widths = values(&xml.finish(), "rect", "width");
        assert_eq!(widths.len(), 3);
        assert_eq!(widths[0], WIDTH - LABEL_WIDTH - VALUE_WIDTH);
        assert!((widths[0] - 2.0 * widths[1]).abs() < 1.0 && widths[2] < 1.0);
    }

    #[test]
    fn points_lie_inside_and_in_order() {
        let series = Series {
            label: "a".into(),
            points: vec![(0.0, 0.1), (0.9, 1.0), (0.99, 10.0), (1.0, 100.0)],
            failed: vec![(0.5, 100.0)],
        };
        let mut xml = Xml::default();
        let axes = [Axis::Nines { last: 0.99 }, Axis::Log];
        lines(&mut xml, ["x", "y"], axes, &[series], Some(5.0));
        let text = xml.finish();
        let (xs, ys) = (values(&text, "circle", "cx"), values(&text, "circle", "cy"));
        assert!(xs.windows(2).all(|pair| pair[0] < pair[1]), "{xs:?}");
        assert!(ys.windows(2).all(|pair| pair[0] > pair[1]), "{ys:?}");
        assert!(xs.iter().all(|x| (MARGIN_LEFT..WIDTH).contains(x)));
        // A factor of ten is as high everywhere.
        assert!(((ys[0] - ys[1]) - (ys[2] - ys[3])).abs() < 0.5, "{ys:?}");
        assert!(text.contains("p99<") && text.contains("max<"), "{text}");
    }

    #[test]
    fn one_point_and_none_are_drawn_too() {
        for points in [vec![], vec![(3.0, 3.0)]] {
            let mut xml = Xml::default();
            let one = Series {
                label: String::new(),
                points,
                failed: Vec::new(),
            };
            lines(&mut xml, ["x", "y"], [Axis::Linear, Axis::Log], &[one], None);
            assert!(!xml.finish().contains("NaN"));
        }
    }
}
