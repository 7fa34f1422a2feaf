//! Which key is next.
//!
//! Place on the path: first. Sources: "Quickly generating billion-record synthetic databases" (Gray et al.,
//! SIGMOD 1994) for drawing from a Zipf distribution in constant time; YCSB (Cooper et al., SoCC 2010) for
//! scattering the popular keys over all, and for `latest`.

use rand_core::RngCore;
use std::io::Write;
use std::str::FromStr;

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Each key as often as any other.
    Uniform,
    /// The key of rank r as often as r to the power of minus this; popular keys lie anywhere.
    Zipf(f64),
    /// As Zipf, the key that was inserted last being the most popular.
    Latest(f64),
}

/// The exponent of YCSB.
const ZIPF_THETA: f64 = 0.99;

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let (name, theta) = text.split_once(':').unwrap_or((text, ""));
        let theta = match theta {
            "" => Ok(ZIPF_THETA),
            theta => theta.parse::<f64>().map_err(|_| format!("'{theta}' is no number")),
        }?;
        if !(0.01..=0.999).contains(&theta) {
            return Err(format!("{theta}: the exponent lies between 0.01 and 0.999"));
        }
        match name {
            "uniform" if !text.contains(':') => Ok(Distribution::Uniform),
            "zipf" => Ok(Distribution::Zipf(theta)),
            "latest" => Ok(Distribution::Latest(theta)),
            _ => Err(format!("'{text}': keys are chosen uniform, zipf, zipf:0.8 or latest")),
        }
    }
}

/// Draws ranks of a Zipf distribution over a number of items, the most popular being 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    items: u64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

/// Terms of [`zeta`] that are added up one by one: of a billion keys all would take half a minute.
const ZETA_TERMS_MAX: u64 = 10_000;

/// The sum of the first `items` popularities: the first ones as they are, the rest by the formula of Euler
/// and Maclaurin, whose next term is below the last digit by then.
fn zeta(items: u64, theta: f64) -> f64 {
    let summed = items.min(ZETA_TERMS_MAX);
    let sum: f64 = (1..=summed).map(|rank| (rank as f64).powf(-theta)).sum();
    if summed == items {
        return sum;
    }
    let (from, to) = (summed as f64, items as f64);
    let power = |rank: f64| rank.powf(-theta);
    // Of exponents next to 1 the difference of two powers would have few digits left.
    let integral = from.powf(1.0 - theta) * ((1.0 - theta) * (to / from).ln()).exp_m1() / (1.0 - theta);
    let slope = |rank: f64| -theta * power(rank) / rank;
    let third = |rank: f64| -theta * (theta + 1.0) * (theta + 2.0) * power(rank) / rank.powi(3);
    let ends = (power(to) - power(from)) / 2.0 + (slope(to) - slope(from)) / 12.0;
    sum + integral + ends - (third(to) - third(from)) / 720.0
}

impl Zipf {
    fn new(items: u64, theta: f64) -> Zipf {
        assert!(items > 0 && theta < 1.0);
        let (zeta_items, zeta_two) = (zeta(items, theta), zeta(items.min(2), theta));
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta_two / zeta_items);
        Zipf { items, theta, zeta: zeta_items, alpha: 1.0 / (1.0 - theta), eta }
    }

    fn draw(&self, random: &mut impl RngCore) -> u64 {
        let uniform = unit(random);
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.theta) {
            return 1.min(self.items - 1);
        }
        let rank = (self.items as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.items - 1)
    }

    /// Which of the first `keys` keys has a rank: the first that is there of a row of places that depends
    /// on the rank alone. So popular keys stay where they are when keys are inserted, and each new one
    /// takes its share.
    fn place(&self, rank: u64, keys: u64) -> u64 {
        let places = (2 * self.items).next_power_of_two();
        let row = std::iter::successors(Some(scatter(rank)), |place| Some(scatter(*place)));
        let mut there = row.map(|place| place % places).filter(|place| *place < keys);
        there.next().expect("the row has no end")
    }
}

/// A number from 0 to below 1.
fn unit(random: &mut impl RngCore) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number below another one.
pub(crate) fn below(random: &mut impl RngCore, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// A number that looks random and depends on nothing else (splitmix64).
pub(crate) fn scatter(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Chooses among the keys that are there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chooser {
    Uniform,
    Zipf(Zipf),
    Latest(Zipf),
}

impl Chooser {
    pub(crate) fn new(distribution: Distribution, keys: u64) -> Chooser {
        match distribution {
            Distribution::Uniform => Chooser::Uniform,
            Distribution::Zipf(theta) => Chooser::Zipf(Zipf::new(keys, theta)),
            Distribution::Latest(theta) => Chooser::Latest(Zipf::new(keys, theta)),
        }
    }

    /// One of the first `keys` keys.
    pub(crate) fn choose(&self, keys: u64, random: &mut impl RngCore) -> u64 {
        match self {
            Chooser::Uniform => below(random, keys),
            Chooser::Zipf(zipf) => zipf.place(zipf.draw(random), keys),
            Chooser::Latest(zipf) => keys - 1 - zipf.draw(random).min(keys - 1),
        }
    }
}

/// The name of a key: so many bytes.
pub(crate) fn name(number: u64, bytes: usize, into: &mut Vec<u8>) {
    const PREFIX: &str = "key:";
    let digits = bytes.saturating_sub(PREFIX.len());
    into.clear();
    write!(into, "{PREFIX}{number:0digits$}").expect("a vector takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    const DRAWS: u32 = 400_000;

    /// How often each rank is drawn, against its popularity.
    #[test]
    fn ranks_are_drawn_as_often_as_they_are_popular() {
        for (items, theta) in [(1000, 0.99), (100_000, 0.99), (1000, 0.5)] {
            let (zipf, mut random) = (Zipf::new(items, theta), Xoshiro256PlusPlus::seed_from_u64(1));
            let mut counts = vec![0_u32; items as usize];
            (0..DRAWS).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            let share = |ranks: std::ops::Range<u64>| {
                let drawn: u32 = counts[ranks.start as usize..ranks.end as usize].iter().sum();
                let popular: f64 = ranks.map(|rank| ((rank + 1) as f64).powf(-theta)).sum();
                (f64::from(drawn) / f64::from(DRAWS), popular / zeta(items, theta))
            };
            for ranks in [0..1, 1..2, 2..10, 10..100, 100..1000, 0..items / 2] {
                let (drawn, popular) = share(ranks.clone());
                // The method is an approximation: good to a tenth.
                assert!(
                    (drawn - popular).abs() < 0.1 * popular,
                    "{items} {theta} {ranks:?}: {drawn} {popular}"
                );
            }
        }
    }

    #[test]
    fn popularities_of_very_many_keys_are_summed_exactly_and_at_once() {
        for theta in [0.01, 0.5, 0.99, 0.999] {
            for items in [1, 2, ZETA_TERMS_MAX, ZETA_TERMS_MAX + 1, 12_345, 1_000_000] {
                let plain: f64 = (1..=items).rev().map(|rank| (rank as f64).powf(-theta)).sum();
                let error = (zeta(items, theta) / plain - 1.0).abs();
                assert!(error < 1e-9, "{items} {theta}: {error}");
            }
        }
        // One by one these would take hours.
        let most = u64::from(u32::MAX) << 8;
        assert!(zeta(most, 0.99) > zeta(most / 2, 0.99) && zeta(most, 0.99) < 40.0);
    }

    #[test]
    fn choices_stay_among_the_keys() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(2);
        for keys in [1, 2, 3, 1000] {
            for distribution in ["uniform", "zipf", "zipf:0.5", "latest"] {
                let chooser = Chooser::new(distribution.parse().unwrap(), keys);
                assert!((0..1000).all(|_| chooser.choose(keys, &mut random) < keys), "{distribution} {keys}");
            }
        }
        let latest = Chooser::new(Distribution::Latest(0.99), 1000);
        let newest = (0..1000).filter(|_| latest.choose(1000, &mut random) == 999).count();
        assert!(newest > 80, "the newest key is the most popular: {newest} of 1000");
    }

    /// Each insert moved every popular key elsewhere: a load with inserts was nearly uniform (found by an
    /// audit).
    #[test]
    fn popular_keys_stay_popular_while_keys_are_inserted() {
        let (chooser, mut random) =
            (Chooser::new(Distribution::Zipf(0.99), 1000), Xoshiro256PlusPlus::seed_from_u64(3));
        let mut counts = vec![0_u32; 1500];
        for step in 0..u64::from(DRAWS) {
            counts[chooser.choose(1000 + step * 500 / u64::from(DRAWS), &mut random) as usize] += 1;
        }
        let inserted = f64::from(counts[1000..].iter().sum::<u32>()) / f64::from(DRAWS);
        assert!((0.05..0.5).contains(&inserted), "{inserted} of the draws were of new keys");
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hottest = f64::from(counts[..10].iter().sum::<u32>()) / f64::from(DRAWS);
        assert!((0.3..0.6).contains(&hottest), "{hottest} of the draws were of the ten hottest keys");
    }

    #[test]
    fn names_have_their_length_and_words_are_checked() {
        let mut bytes = Vec::new();
        name(42, 16, &mut bytes);
        assert_eq!(bytes, b"key:000000000042");
        name(123_456, 8, &mut bytes);
        assert_eq!(bytes, b"key:123456", "a number is never cut");
        for wrong in ["", "normal", "zipf:", "zipf:1", "zipf:x", "uniform:0.5"] {
            let parsed = wrong.parse::<Distribution>();
            assert!(wrong == "zipf:" || parsed.is_err(), "{wrong}: {parsed:?}");
        }
    }
}
