//! Experiments: product code over modelled devices in virtual time, measured as shares of a plain device.
//!
//! Place: called by the command line (`plimsoll sim list`, `plimsoll sim run`). Invariant: the same
//! experiment gives the same numbers on every machine. Never: a number of real hardware.

mod auto;
mod device;
mod drive;
mod failures;
mod kvmd;
mod kvmd_flash;
mod load;
mod plot;
mod raid;
mod rebuild;
mod records;

use device::Model;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Something that can be measured.
pub struct Experiment {
    /// What it is called.
    pub name: &'static str,
    /// What it shows, and of which paper.
    pub about: &'static str,
    run: fn(u64) -> Report,
}

/// What an experiment gave.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Which keys there were.
    pub seed: u64,
    /// What was measured, and on what.
    pub conditions: String,
    /// One after the other.
    pub tables: Vec<Table>,
}

/// Numbers with names.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Of the columns, that of the rows' names first.
    pub columns: Vec<String>,
    /// Each with its name, and a number for each further column.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The columns of numbers that have one scale, for the plot.
    pub plotted: Vec<usize>,
}

/// All experiments.
#[must_use]
pub fn list() -> &'static [Experiment] {
    &[
        Experiment {
            name: "kvmd-mechanisms",
            about: "store, update, retrieve and delete by each mechanism, as shares of no redundancy (KVMD, K2 and K3)",
            run: kvmd::mechanisms,
        },
        Experiment {
            name: "kvmd-flash",
            about: "the same over the flash engine, on drives limited in requests and bytes; bytes of stores, and space",
            run: kvmd_flash::mechanisms_on_drives,
        },
        Experiment {
            name: "kvmd-hybrid",
            about: "values of three sizes, each by its own mechanism, beside one mechanism for all (KVMD, K4)",
            run: kvmd::hybrid,
        },
        Experiment {
            name: "kvmd-auto",
            about: "mechanisms that are picked, beside those that could have been named, over three traces (KVMD leaves it open)",
            run: auto::auto,
        },
        Experiment {
            name: "kvmd-failures",
            about: "retrieving without one and two devices, and filling a new one (KVMD, K5)",
            run: failures::failures,
        },
        Experiment {
            name: "kvmd-raid",
            about: "block RAID over the same devices, in order and not, as shares of no redundancy (KVMD, K1)",
            run: raid::raid,
        },
        Experiment {
            name: "kvmd-rebuild",
            about: "filling a new device with live data alone, beside block RAID, which fills all of it (KVMD, K5)",
            run: rebuild::beside_raid,
        },
        Experiment {
            name: "kvmd-rebuild-load",
            about: "filling a new device beside clients at half load: what they feel of it",
            run: rebuild::beside_load,
        },
    ]
}

impl Experiment {
    /// Runs it with the keys of a seed.
    #[must_use]
    pub fn run(&self, seed: u64) -> Report {
        (self.run)(seed)
    }

    /// Writes what it gave into a directory, which is made if need be: `NAME.json` and `NAME.svg`.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn write(&self, report: &Report, dir: &Path) -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        let json = serde_json::to_string_pretty(report)?;
        fs::write(dir.join(format!("{}.json", self.name)), json + "\n")?;
        fs::write(dir.join(format!("{}.svg", self.name)), plot::svg(report))
    }
}

/// The table as text: names to the left, numbers to the right.
impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let row = |(name, numbers): &(String, Vec<f64>)| {
            std::iter::once(name.clone()).chain(numbers.iter().copied().map(number_text)).collect()
        };
        let lines: Vec<Vec<String>> =
            std::iter::once(self.columns.clone()).chain(self.rows.iter().map(row)).collect();
        let width = |column: usize| lines.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
        write!(f, "{}", self.title)?;
        for cells in &lines {
            write!(f, "\n{:1$}", cells[0], width(0))?;
            for (column, cell) in cells.iter().enumerate().skip(1) {
                write!(f, "  {cell:>0$}", width(column))?;
            }
        }
        writeln!(f)
    }
}

fn number_text(number: f64) -> String {
    if number.is_nan() { "-".to_owned() } else { format!("{number:.3}") }
}

/// Devices on which a request costs the same, whatever it is, and its bytes: of which the first weighs more,
/// and the second.
const MODELS: [Model; 2] =
    [Model { request_ns: 20_000, bytes_per_us: 2_000 }, Model { request_ns: 1_000, bytes_per_us: 1_000 }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_stands_in_columns() {
        let columns = ["by", "share", "of limit"].map(str::to_owned).to_vec();
        let rows =
            vec![("none".to_owned(), vec![1.0, 0.5]), ("a long name".to_owned(), vec![10.25, f64::NAN])];
        let table = Table { title: "a title".to_owned(), columns, rows, plotted: vec![0] };
        let expected = "a title\nby            share  of limit\nnone          1.000     0.500\n\
                        a long name  10.250         -\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn experiments_have_names_of_their_own() {
        let names: std::collections::BTreeSet<&str> = list().iter().map(|it| it.name).collect();
        assert_eq!(names.len(), list().len());
    }
}
