//! trial
fn main() {
    let mut args = std::env::args().skip(1);
    let from: u64 = args.next().unwrap().parse().unwrap();
    let to: u64 = args.next().unwrap().parse().unwrap();
    let traces = args.next().is_some();
    let mut bad = 0;
    for seed in from..to {
        let report = plimsoll_sim::fuzz::run_seed(seed, traces);
        if traces {
            for line in &report.trace {
                println!("{line}");
            }
        }
        let ops: u64 = report.eras.iter().map(|e| e.tally.operations).sum();
        let crashes: u64 = report.eras.iter().map(|e| e.crashes).sum();
        if let Some(v) = &report.violation {
            bad += 1;
            println!(
                "seed {seed} {:?} eras {} ops {ops} crashes {crashes}: {}: {}",
                report.class,
                report.eras.len(),
                v.rule,
                v.explanation.chars().take(1500).collect::<String>()
            );
        } else if to - from < 20 {
            println!(
                "seed {seed} {:?} {:?} {:x}",
                report.class,
                report
                    .eras
                    .iter()
                    .map(|e| (
                        e.lives,
                        e.crashes,
                        e.crashes_in_recovery,
                        e.opens_failed,
                        e.ended_by_damage,
                        e.tally
                    ))
                    .collect::<Vec<_>>(),
                report.trace_hash
            );
        }
    }
    println!("{bad} bad");
}
