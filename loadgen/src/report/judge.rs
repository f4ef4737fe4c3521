//! The one rule by which `best`, `compare` and the report tell two cells apart.
//!
//! Owns: the rule. Must not: know more about a figure than whether higher or lower is better. Runs on the main thread.
//!
//! Latencies, rates and sizes vary by factors, so the rule works on logarithms. Two cells that were measured in turns
//! are compared repeat by repeat, because a disturbance slows both. Other cells are compared as a whole. Both give a
//! t-test (the second is Welch's, with its degrees of freedom rounded down), and an interval for how many times better
//! one side is.
//!
//! A table of 200 rows has ten rows with p below 0.05 when nothing differs. So the rows of a table are judged together,
//! by the procedure of Benjamini and Hochberg (1995). Among the differences that a table names, at most one in twenty
//! is chance. If nothing differs at all, at most one table in twenty names any difference.

use std::f64::consts::FRAC_2_PI;

use serde::Serialize;

use super::cells::Sample;
use super::figures::Better;

/// Repeats on each side that a verdict needs.
pub(crate) const RUNS_MIN: usize = 3;
/// Share of the differences named by a table that may be chance.
const CHANCE: f64 = 0.05;
/// Probability with which the shown interval contains the truth.
const CONFIDENCE: f64 = 0.95;
/// Factor below which cells are not told apart, because a histogram has 3 digits.
const APART_MIN: f64 = 1.01;
/// Factor within which the whole interval must lie for cells to be level.
const LEVEL_WITHIN: f64 = 1.1;
/// Least standard deviation of a logarithm. It comes from rounding to 3 digits, where a step is up to 1 %, so 1 % /
/// √12.
const ROUNDING: f64 = 0.003;
/// Value in place of zero, which has no logarithm. No figure is so small.
const LEAST: f64 = 1e-9;

/// Judgement about one side compared with another, from their repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, by more than chance explains.
    Ahead,
    /// The same, within 10 %.
    Level,
    /// Worse, by more than chance explains.
    Behind,
    /// Not decided, because the repeats are too few or differ too much.
    NotDecided,
}

/// The rule in words, as reports print it.
pub(crate) const RULE: &str = "\
Ahead or behind: at least 3 repeats a side, a t-test of the logarithms, compared repeat by repeat where the runs were made by \
turns, with an allowance for the number of rows (Benjamini and Hochberg, 5 %), and 1 % or more apart. Level: the 95 % \
interval of the ratio is within 10 %. Else not decided.";

/// How many times better one side is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    /// Mean over the repeats, geometric; `None` with too few of them.
    pub(crate) times: Option<f64>,
    /// Lower and upper end of the 95 % interval; `None` with too few repeats.
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) verdict: Verdict,
}

/// The comparisons of one table, which are judged together.
#[derive(Debug, Default)]
pub(crate) struct Family {
    tests: Vec<Option<Test>>,
}

/// Statistics of the logarithm of how many times better one side is.
#[derive(Clone, Copy, Debug)]
struct Test {
    mean: f64,
    error: f64,
    freedom: u32,
}

impl Verdict {
    /// Returns the verdict in words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Behind => "behind",
            Self::NotDecided => "not decided",
        }
    }

    /// Combines the verdicts of one engine about several others: behind if any is ahead of it, and ahead only if it is
    /// ahead of all.
    pub(crate) fn beside_all(verdicts: &[Self]) -> Self {
        let any = |verdict| verdicts.contains(&verdict);
        match () {
            () if any(Self::Behind) => Self::Behind,
            () if any(Self::NotDecided) || verdicts.is_empty() => Self::NotDecided,
            () if any(Self::Level) => Self::Level,
            () => Self::Ahead,
        }
    }
}

impl Family {
    /// Adds the comparison of `one` with `other`, whose runs were made in turns.
    pub(crate) fn add_paired(&mut self, one: &Sample, other: &Sample, better: Better) {
        let pairs = one.values.iter().filter_map(|(repeat, value)| Some((*value, other.of_repeat(*repeat)?)));
        let times: Vec<f64> = pairs.map(|(value, other)| ln(value, better) - ln(other, better)).collect();
        if times.len() < RUNS_MIN {
            return self.add_apart(one, other, better);
        }
        let (mean, variance) = moments(&times);
        let error = (variance / times.len() as f64).sqrt();
        self.tests.push(Some(Test { mean, error, freedom: times.len() as u32 - 1 }));
    }

    /// Adds the comparison of `one` with `other`, whose runs are independent.
    pub(crate) fn add_apart(&mut self, one: &Sample, other: &Sample, better: Better) {
        let logs = |sample: &Sample| sample.values.iter().map(|(_, value)| ln(*value, better)).collect::<Vec<_>>();
        let (one, other) = (logs(one), logs(other));
        if one.len().min(other.len()) < RUNS_MIN {
            return self.tests.push(None);
        }
        let ((m1, v1), (m2, v2)) = (moments(&one), moments(&other));
        let (n1, n2) = (one.len() as f64, other.len() as f64);
        let (s1, s2) = (v1 / n1, v2 / n2);
        let freedom = (s1 + s2).powi(2) / (s1.powi(2) / (n1 - 1.0) + s2.powi(2) / (n2 - 1.0));
        self.tests.push(Some(Test { mean: m1 - m2, error: (s1 + s2).sqrt(), freedom: freedom as u32 }));
    }

    /// Judges all comparisons, in the order in which they were added. Each verdict is about the first side.
    pub(crate) fn judge(&self) -> Vec<Judged> {
        let mut chances: Vec<f64> = self.tests.iter().flatten().map(Test::chance).collect();
        chances.sort_by(f64::total_cmp);
        let rows = chances.len() as f64;
        let within = |(at, chance): &(usize, &f64)| **chance <= CHANCE * (at + 1) as f64 / rows;
        let limit = chances.iter().enumerate().rfind(within).map(|(_, chance)| *chance);
        self.tests.iter().map(|test| judged(test.as_ref(), limit)).collect()
    }
}

impl Test {
    /// Returns the probability that equal sides come out at least so far apart.
    fn chance(&self) -> f64 {
        1.0 - inside((self.mean / self.error).abs(), self.freedom)
    }
}

/// Judges one comparison. `limit`: greatest chance at which the table names a difference.
fn judged(test: Option<&Test>, limit: Option<f64>) -> Judged {
    let Some(test) = test else { return Judged { times: None, interval: None, verdict: Verdict::NotDecided } };
    let reach = test.error * beyond(test.freedom);
    let (low, high) = (test.mean - reach, test.mean + reach);
    let apart = limit.is_some_and(|limit| test.chance() <= limit) && test.mean.abs() >= APART_MIN.ln();
    let verdict = match () {
        () if apart && test.mean > 0.0 => Verdict::Ahead,
        () if apart => Verdict::Behind,
        () if low.abs().max(high.abs()) <= LEVEL_WITHIN.ln() => Verdict::Level,
        () => Verdict::NotDecided,
    };
    Judged { times: Some(test.mean.exp()), interval: Some((low.exp(), high.exp())), verdict }
}

/// Returns the logarithm of a figure, with its sign chosen so that greater is better.
fn ln(value: f64, better: Better) -> f64 {
    let log = value.max(LEAST).ln();
    if better == Better::Higher { log } else { -log }
}

/// Returns mean and variance of at least two values.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.max(ROUNDING.powi(2)))
}

/// Returns the probability that Student's t is within `t` of zero: Abramowitz and Stegun, Handbook of Mathematical
/// Functions, 26.7.3 and 26.7.4.
fn inside(t: f64, freedom: u32) -> f64 {
    let angle = (t / f64::from(freedom).sqrt()).atan();
    let (sine, cosine) = (angle.sin(), angle.cos());
    // 1, then each term from the one before: odd over even numbers, or even over odd ones.
    let is_odd = freedom % 2 == 1;
    let (mut term, mut sum) = (if is_odd { cosine } else { 1.0 }, 0.0);
    let first = if is_odd { 3 } else { 2 };
    for divisor in (first..=freedom).step_by(2) {
        sum += term;
        term *= f64::from(divisor - 1) / f64::from(divisor) * cosine.powi(2);
    }
    if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

/// Returns the distance from zero within which Student's t lies with [`CONFIDENCE`].
fn beyond(freedom: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1000.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if inside(middle, freedom) < CONFIDENCE { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use workload::Rng;

    use super::*;

    /// Draws a normal number, by the method of Box and Muller.
    fn normal(rng: &mut Rng) -> f64 {
        let uniform = |rng: &mut Rng| (rng.below(1 << 52) + 1) as f64 / (1u64 << 52) as f64;
        (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
    }

    /// Judges `rows` rows of two engines measured in turns, the second `times` slower. Both share a disturbance in each
    /// repeat.
    fn table(rng: &mut Rng, rows: usize, repeats: u32, noise: f64, times: f64) -> Vec<Verdict> {
        let mut family = Family::default();
        for _ in 0..rows {
            let weather: Vec<f64> = (0..repeats).map(|_| 0.2 * normal(rng)).collect();
            let mut engine = |mean: f64| {
                let value = |(repeat, weather): (u32, &f64)| (repeat, mean * (weather + noise * normal(rng)).exp());
                Sample::new((0..repeats).zip(&weather).map(value).collect())
            };
            let (one, other) = (engine(500.0), engine(500.0 * times));
            family.add_paired(&one, &other, Better::Lower);
        }
        family.judge().into_iter().map(|judged| judged.verdict).collect()
    }

    fn share(verdicts: &[Verdict], wanted: Verdict) -> f64 {
        verdicts.iter().filter(|verdict| **verdict == wanted).count() as f64 / verdicts.len() as f64
    }

    #[test]
    fn equal_engines_are_level_in_95_of_100_rows_and_95_of_100_tables_name_no_difference() {
        let mut rng = Rng::new(1);
        let mut rows = Vec::new();
        let (mut named, tables) = (0, 1000);
        for _ in 0..tables {
            let table = table(&mut rng, 200, 5, 0.02, 1.0);
            named += u32::from(table.iter().any(|verdict| [Verdict::Ahead, Verdict::Behind].contains(verdict)));
            rows.extend(table);
        }
        assert!(share(&rows, Verdict::Level) >= 0.95, "{}", share(&rows, Verdict::Level));
        // At most three standard deviations of a share of 1000 above 5 %. Not zero either, because the rule is no
        // stricter than it says.
        assert!((30..=71).contains(&named), "{named} of {tables} tables of equal engines name a difference");
    }

    #[test]
    fn a_difference_is_found_and_noise_decides_nothing() {
        let mut rng = Rng::new(2);
        let found = table(&mut rng, 200, 5, 0.02, 1.2);
        assert!(share(&found, Verdict::Ahead) > 0.99, "{}", share(&found, Verdict::Ahead));
        let noisy = table(&mut rng, 200, 5, 0.5, 1.0);
        assert!(share(&noisy, Verdict::NotDecided) > 0.95, "{}", share(&noisy, Verdict::NotDecided));
        let few = table(&mut rng, 200, 2, 0.02, 3.0);
        assert_eq!(share(&few, Verdict::NotDecided), 1.0);
    }

    #[test]
    fn weather_that_both_had_is_no_noise_and_that_of_one_is() {
        let of = |factor: f64| Sample::new((0..5).map(|at| (at, factor * 1.5f64.powi(at as i32))).collect());
        let (one, other) = (of(100.0), of(120.0));
        let mut family = Family::default();
        family.add_paired(&one, &other, Better::Lower);
        family.add_paired(&one, &other, Better::Higher);
        family.add_apart(&one, &other, Better::Lower);
        let judged = family.judge();
        let verdicts: Vec<Verdict> = judged.iter().map(|judged| judged.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ahead, Verdict::Behind, Verdict::NotDecided]);
        let (low, high) = judged[0].interval.unwrap();
        assert!(low > 1.19 && high < 1.21, "{low} {high}");
    }

    #[test]
    fn zeros_are_figures_and_what_is_equal_to_the_last_digit_is_level() {
        let of = |value: f64| Sample::new((0..3).map(|at| (at, value)).collect());
        let mut family = Family::default();
        for (one, other) in [(0.0, 0.0), (0.0, 0.02), (0.02, 0.0), (100.0, 100.9)] {
            family.add_paired(&of(one), &of(other), Better::Lower);
        }
        let verdicts: Vec<Verdict> = family.judge().iter().map(|judged| judged.verdict).collect();
        assert_eq!(verdicts, [Verdict::Level, Verdict::Ahead, Verdict::Behind, Verdict::Level]);
    }

    #[test]
    fn one_beside_several() {
        use Verdict::{Ahead, Behind, Level, NotDecided};
        for (beside, all) in [
            (&[Ahead, Ahead][..], Ahead),
            (&[Ahead, Level], Level),
            (&[Ahead, NotDecided], NotDecided),
            (&[NotDecided, Behind], Behind),
            (&[], NotDecided),
        ] {
            assert_eq!(Verdict::beside_all(beside), all, "{beside:?}");
        }
    }

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (freedom, t) in [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (8, 2.306), (30, 2.042)] {
            assert!((beyond(freedom) - t).abs() < 0.001, "{freedom}: {}", beyond(freedom));
        }
        assert!((1.0 - inside(8.610, 4) - 0.001).abs() < 1e-5);
    }
}
