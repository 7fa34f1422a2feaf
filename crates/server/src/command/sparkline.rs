//! A graph of letters, as LATENCY GRAPH draws it.
//!
//! Invariant: a column for each point, from low to high in as many steps as Redis takes.

/// Points of one line of the graph.
pub(super) const COLUMNS: usize = 80;
const ROWS: usize = 4;
/// The lower, middle and upper third of a row.
const LETTERS: [char; 3] = ['_', 'o', '#'];

/// A point.
pub(super) struct Point {
    pub(super) value: u64,
    /// What stands below it, from top to bottom.
    pub(super) label: String,
}

/// Appends the graph.
pub(super) fn render(text: &mut String, points: &[Point]) {
    let (min, max) = points.iter().fold((u64::MAX, 0), |(min, max), p| (min.min(p.value), max.max(p.value)));
    let range = (max.saturating_sub(min)).max(1) as f64;
    for (index, chunk) in points.chunks(COLUMNS).enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let steps = ROWS * LETTERS.len();
        let step =
            |point: &Point| ((((point.value - min) as f64) * steps as f64 / range) as usize).min(steps - 1);
        for row in 0..ROWS {
            let floor = (ROWS - row - 1) * LETTERS.len();
            text.extend(chunk.iter().map(|point| match step(point).checked_sub(floor) {
                None => ' ',
                Some(above) => LETTERS.get(above).copied().unwrap_or('|'),
            }));
            text.push('\n');
        }
        text.push_str(&" ".repeat(chunk.len()));
        text.push('\n');
        let longest = chunk.iter().map(|point| point.label.len()).max().unwrap_or(0);
        for at in 0..longest {
            let letter = |point: &Point| point.label.as_bytes().get(at).map_or(' ', |byte| *byte as char);
            text.extend(chunk.iter().map(letter));
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_drawn_from_low_to_high_with_their_labels() {
        let points: Vec<Point> = [(1, "12s"), (2, "9s"), (3, "1m"), (13, "5s")]
            .map(|(value, label)| Point { value, label: label.to_owned() })
            .into();
        let mut text = String::new();
        render(&mut text, &points);
        assert_eq!(text, "   #\n   |\n   |\n_o#|\n    \n1915\n2sms\ns   \n");
        let mut flat = String::new();
        render(&mut flat, &[Point { value: 7, label: "1s".to_owned() }]);
        assert_eq!(flat, " \n \n \n_\n \n1\ns\n");
    }
}
