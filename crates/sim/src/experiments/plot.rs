//! Plots of what experiments gave: for each table a group of bars for each row.
//!
//! Place: written beside the numbers by `plimsoll sim run --out`. Invariant: nothing is shown that the table
//! does not have, and the scale begins at zero.

use super::{Report, Table};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 900;
/// Of one table.
const HEIGHT: u32 = 260;
/// Room above the highest bar, for the names of the groups.
const HEADROOM: f64 = 1.25;
/// Room to the right of the last bar, for the legend.
const LEGEND: f64 = 1.25;
/// Colours that are told apart by those who do not see all of them, too (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
];

/// All tables of a report, one below the other.
pub(super) fn svg(report: &Report) -> String {
    let mut text = String::new();
    {
        let height = HEIGHT * report.tables.len() as u32;
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).expect("a string takes what is drawn");
        for (table, part) in report.tables.iter().zip(area.split_evenly((report.tables.len(), 1))) {
            draw(table, &part).expect("a string takes what is drawn");
        }
    }
    text
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(table: &Table, area: &DrawingArea<SVGBackend<'a>, Shift>) -> Drawn<'a> {
    let bars = table.plotted.len();
    let numbers =
        |(_, row): &(String, Vec<f64>)| table.plotted.iter().map(|column| row[*column]).collect::<Vec<f64>>();
    let highest = table.rows.iter().flat_map(numbers).fold(0.0, f64::max) * HEADROOM;
    let end = (table.rows.len() * (bars + 1)) as f64 * LEGEND;
    let mut chart = ChartBuilder::on(area)
        .caption(&table.title, ("sans-serif", 13))
        .margin(10)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..end, 0.0..highest)?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_labels(6).max_light_lines(0).draw()?;
    for (place, column) in table.plotted.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let bar = |(group, (_, row)): (usize, &(String, Vec<f64>))| {
            let left = (group * (bars + 1) + place) as f64 + 0.5;
            Rectangle::new([(left, 0.0), (left + 0.9, row[*column])], colour.filled())
        };
        chart
            .draw_series(table.rows.iter().enumerate().map(bar))?
            .label(table.columns[column + 1].clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    let style = ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Bottom));
    let name = |(group, (name, _)): (usize, &(String, Vec<f64>))| {
        let middle = (group * (bars + 1)) as f64 + (bars as f64 + 1.0) / 2.0;
        Text::new(name.clone(), (middle, highest / HEADROOM * 1.02), style.clone())
    };
    chart.draw_series(table.rows.iter().enumerate().map(name))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 11))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_and_column_is_in_the_plot() {
        let rows = vec![("copies".to_owned(), vec![0.25, 3.0]), ("shards".to_owned(), vec![0.5, 6.0])];
        let columns = ["by", "share of store", "requests"].map(str::to_owned).to_vec();
        let table = Table { title: "how it went".to_owned(), columns, rows, plotted: vec![0] };
        let report = Report { tables: vec![table], ..Report::default() };
        let plot = svg(&report);
        for word in ["<svg", "how it went", "copies", "shards", "share of store"] {
            assert!(plot.contains(word), "{word}: {plot}");
        }
        assert!(!plot.contains("requests"), "of another scale");
        // Two bars, the second twice as high.
        let bars: Vec<f64> =
            plot.lines().filter(|line| line.contains("#0072B2")).filter_map(height).collect();
        assert_eq!(bars.len(), 3, "{plot}"); // And the legend's.
        assert!((bars[1] / bars[0] - 2.0).abs() < 0.05, "{bars:?}");
    }

    /// `make experiments` writes them together.
    #[test]
    fn plots_in_the_docs_show_the_numbers_beside_them() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plots/simulated");
        for experiment in crate::experiments::list() {
            let read = |kind: &str| {
                let file = dir.join(format!("{}.{kind}", experiment.name));
                std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            };
            let report: Report = serde_json::from_str(&read("json")).expect("it was written as one");
            assert!(!report.tables.is_empty() && svg(&report) == read("svg"), "{}", experiment.name);
        }
    }

    fn height(line: &str) -> Option<f64> {
        line.split("height=\"").nth(1)?.split('"').next()?.parse().ok()
    }
}
