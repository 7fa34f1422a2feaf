//! How long a set lasts: the mean time to data loss, exact and as the paper approximates it.
//!
//! Source: KVMD (FAST'20), the section on reliability: figure 13 and equations 1 and 2. A set of N members is
//! a chain of states 0 to f members lost. From state i it goes on with rate (N - i) / MTTF, and back by one
//! with rate 1 / MTTR; state f is the loss of data.
//!
//! The chain is not solved as a system of equations: with repair a million times as quick as failure, doubles
//! lose all their digits there, and give times below zero. The mean time from state i to the next is a sum
//! of two positive terms, the second the time before it; adding them up takes nothing away, so each result
//! has the digits of a double, however many states there are.

/// How often members are lost, and how long a loss lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Mean time to the failure of a member, in hours.
    pub mttf_h: f64,
    /// Mean time to the repair of one, in hours.
    pub mttr_h: f64,
}

/// The mean time in hours until a set of `members` has lost `fatal_losses` of them, exact. Infinite, if it is
/// more than a double holds.
///
/// # Panics
/// More losses than members, or none; times that are not above zero and finite.
#[must_use]
pub fn set_mttdl_h(members: u32, fatal_losses: u32, failures: Failures) -> f64 {
    check(members, fatal_losses, failures);
    let repairs = 1.0 / failures.mttr_h;
    let (mut step_h, mut sum_h) = (0.0, 0.0);
    for lost in 0..fatal_losses {
        let losses = f64::from(members - lost) / failures.mttf_h;
        step_h = (1.0 + if lost == 0 { 0.0 } else { repairs * step_h }) / losses;
        sum_h += step_h;
    }
    sum_h
}

/// The same by equation 2: µ^(f-1) / (N (N-1) … (N-f+1) λ^f). Too little where repair is slow.
///
/// # Panics
/// As [`set_mttdl_h`].
#[must_use]
pub fn set_mttdl_approximate_h(members: u32, fatal_losses: u32, failures: Failures) -> f64 {
    check(members, fatal_losses, failures);
    let longer = failures.mttf_h / failures.mttr_h;
    let steps = (0..fatal_losses).map(|lost| {
        let repaired = if lost == 0 { failures.mttf_h } else { longer };
        repaired / f64::from(members - lost)
    });
    steps.product()
}

fn check(members: u32, fatal_losses: u32, failures: Failures) {
    assert!((1..=members).contains(&fatal_losses), "data is lost with one member at least, and all at most");
    let is_time = |hours: f64| hours.is_finite() && hours > 0.0;
    assert!(is_time(failures.mttf_h) && is_time(failures.mttr_h), "times are above zero and finite");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failures(loss_rate: f64, repair_rate: f64) -> Failures {
        Failures { mttf_h: 1.0 / loss_rate, mttr_h: 1.0 / repair_rate }
    }

    fn is_close(value: f64, wanted: f64, share: f64) -> bool {
        (value / wanted - 1.0).abs() <= share
    }

    #[test]
    fn the_chain_and_its_approximation_are_those_known() {
        for (members, losses, loss_rate, exact, approximate) in [
            (3, 3, 0.01, 173_516.666_7, 166_666.666_7),
            (6, 3, 0.01, 9_228.333_3, 8_333.333_3),
            (6, 3, 0.1, 22.833_3, 8.333_3),
        ] {
            let failures = failures(loss_rate, 1.0);
            let told = set_mttdl_h(members, losses, failures);
            assert!(is_close(told, exact, 1e-5), "{members} {losses} {loss_rate}: {told}");
            let told = set_mttdl_approximate_h(members, losses, failures);
            assert!(is_close(told, approximate, 1e-5), "{members} {losses} {loss_rate}: {told}");
        }
        let failures = Failures { mttf_h: 2e6, mttr_h: 0.5 };
        for (members, losses, hours) in [(3, 3, 5.333e18), (6, 3, 2.667e17), (5, 2, 4e11), (2, 2, 4e12)] {
            let told = set_mttdl_h(members, losses, failures);
            assert!(is_close(told, hours, 2e-4), "{members} {losses}: {told}");
        }
    }

    #[test]
    fn one_member_lasts_as_long_as_it_does() {
        let failures = Failures { mttf_h: 1000.0, mttr_h: 3.0 };
        assert_eq!((set_mttdl_h(1, 1, failures), set_mttdl_approximate_h(1, 1, failures)), (1000.0, 1000.0));
    }

    /// The chain in fractions: with λ = 1 and µ = `longer`, the time of step i has the denominator
    /// N (N-1) … (N-i).
    fn in_fractions(members: u32, losses: u32, longer: u128) -> f64 {
        let (mut numerator, mut denominator) = (0_u128, 1_u128);
        let (mut sum, mut common) = (0_u128, 1_u128);
        for lost in 0..losses {
            let intact = u128::from(members - lost);
            numerator = denominator + longer * numerator;
            denominator *= intact;
            sum = sum * intact + numerator;
            common *= intact;
        }
        assert_eq!(common, denominator);
        sum as f64 / common as f64
    }

    proptest! {
        #[test]
        fn it_is_what_fractions_give(
            (members, losses) in (1_u32..=9).prop_flat_map(|members| (Just(members), 1..=members.min(5))),
            longer in 1_u32..10_000_000,
        ) {
            let failures = Failures { mttf_h: f64::from(longer), mttr_h: 1.0 };
            let exact = in_fractions(members, losses, u128::from(longer)) * f64::from(longer);
            let told = set_mttdl_h(members, losses, failures);
            prop_assert!(is_close(told, exact, 1e-14 * f64::from(losses)), "{told} for {exact}");
        }

        #[test]
        fn no_chain_loses_its_digits(
            (members, losses) in (1_u32..=32).prop_flat_map(|members| (Just(members), 1..=members)),
            mttf_exponent in -3.0..9.0_f64,
            mttr_exponent in -6.0..6.0_f64,
        ) {
            let (mttf_h, mttr_h) = (10_f64.powf(mttf_exponent), 10_f64.powf(mttr_exponent));
            let failures = Failures { mttf_h, mttr_h };
            let exact = set_mttdl_h(members, losses, failures);
            let approximate = set_mttdl_approximate_h(members, losses, failures);
            prop_assert!(exact > 0.0 && exact >= approximate * (1.0 - 1e-12), "it leaves out positive terms");
            if losses > 1 {
                let sooner = set_mttdl_h(members, losses - 1, failures);
                // Beyond the range of a double there is nothing longer.
                prop_assert!(exact > sooner || exact.is_infinite(), "one loss more takes longer");
            }
        }
    }
}
