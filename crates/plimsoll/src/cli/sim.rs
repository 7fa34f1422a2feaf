//! `plimsoll sim`: the simulator.

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plimsoll_sim::experiments;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What to simulate.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Worlds with faults: exits with 1 and the seed at the first broken rule.
    Fuzz {
        /// The seeds, from A up to and without B.
        #[arg(long, value_name = "A..B", value_parser = seeds)]
        seeds: Range<u64>,
        /// Go on after a broken rule, and print all of them.
        #[arg(long)]
        go_on: bool,
        /// Fail too if a fault struck a write path in no world: the seeds were too few, or a hole.
        #[arg(long)]
        all_faults: bool,
        /// Print what happens in the first seed, in order.
        #[arg(long)]
        trace: bool,
        /// Worlds of transactions: MULTI, WATCH, MSET, RENAME, FLUSHDB over several cores, judged as a whole.
        #[arg(long, conflicts_with = "all_faults")]
        transactions: bool,
        /// Fault worlds over arrays of devices, of which some fail, go away and come back.
        #[arg(long, conflicts_with_all = ["all_faults", "transactions"])]
        arrays: bool,
    },
    /// What experiments there are.
    List,
    /// Run an experiment: product code over modelled devices in virtual time.
    Run {
        /// Its name, as `list` tells it.
        name: String,
        /// Which keys there are: the numbers should hardly depend on it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Writes NAME.json and NAME.svg there, too.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

fn seeds(text: &str) -> Result<Range<u64>> {
    let (first, end) = text.split_once("..").ok_or_else(|| anyhow!("seeds are written A..B"))?;
    let range = first.parse()?..end.parse()?;
    if range.is_empty() {
        bail!("no seed lies in {text}");
    }
    Ok(range)
}

fn list() -> Result<()> {
    for experiment in experiments::list() {
        println!("{:16} {}", experiment.name, experiment.about);
    }
    Ok(())
}

fn run(name: &str, seed: u64, out: Option<&Path>) -> Result<()> {
    let Some(experiment) = experiments::list().iter().find(|it| it.name == name) else {
        let names: Vec<&str> = experiments::list().iter().map(|it| it.name).collect();
        bail!("{name}: no experiment; there are {}", names.join(", "));
    };
    let report = experiment.run(seed);
    println!("{}", report.conditions);
    for table in &report.tables {
        println!("\n{table}");
    }
    let Some(dir) = out else { return Ok(()) };
    experiment.write(&report, dir).with_context(|| format!("writing to {}", dir.display()))
}

impl Command {
    pub(crate) fn run(self) -> Result<()> {
        use plimsoll_sim::{Say, fuzz, transactions as of_several};
        let (seeds, go_on, all_faults, trace, transactions, arrays) = match self {
            Command::List => return list(),
            Command::Run { name, seed, out } => return run(&name, seed, out.as_deref()),
            Command::Fuzz { seeds, go_on, all_faults, trace, transactions, arrays } => {
                (seeds, go_on, all_faults, trace, transactions, arrays)
            }
        };
        let say: &Say = &|line| println!("{line}");
        if trace || transactions || arrays {
            let holds = match (trace, transactions, arrays) {
                (true, true, _) => of_several::tell_trace(seeds.start, say),
                (true, _, true) => fuzz::arrays::tell_trace(seeds.start, say),
                (true, _, _) => fuzz::tell_trace(seeds.start, say),
                (_, true, _) => of_several::command(seeds, go_on, say).violations.is_empty(),
                _ => fuzz::arrays::command(seeds, go_on, say).all.violations.is_empty(),
            };
            return if holds { Ok(()) } else { Err(anyhow!("a rule was broken: see above")) };
        }
        let totals = fuzz::command(seeds, go_on, say);
        if !totals.violations.is_empty() {
            bail!("a rule was broken: see above")
        }
        if all_faults && !totals.never().is_empty() {
            bail!("not every fault struck every write path: see `never` above; give more seeds")
        }
        Ok(())
    }
}
