//! The one rule by which `best`, `compare` and the report tell two cells apart.
//!
//! Owns: the rule. Must not: know more about a figure than whether higher or lower is better. Runs on the main thread.
//!
//! Latencies, rates and sizes vary by factors, so the rule works on logarithms. It compares two cells repeat by repeat,
//! because a disturbance slows both when they take turns. A t-test of the logarithms of the ratios gives a probability p,
//! and an interval for how many times better one cell is.
//!
//! A row compares one engine with several others, and makes one claim. The claim that it is ahead of all has the largest p
//! of the comparisons. The claim that it is behind one has the smallest p, times the number of engines that came out
//! better. Engines that came out worse are not counted, because they are no evidence for it: given the direction, the p of
//! two sides is that of one side (conditional Bonferroni; Zhao, Small and Su, JASA 2019). So an engine that is better by
//! some factor is found as often as one that is worse by it.
//!
//! Of 200 rows ten have p below 0.05 by chance. So the rows of a table are judged together, by the procedure of Benjamini
//! and Hochberg (1995). At most one in twenty of the claimed differences is chance. If nothing differs, at most one table
//! in twenty claims a difference.

use distrs::StudentsT;
use serde::Serialize;

use super::cells::Sample;
use super::figures::Better;

/// Repeats on each side that a verdict needs.
pub(crate) const RUNS_MIN: usize = 3;
/// Share of the rows with a claimed difference that may be chance.
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

/// Judgement about one side compared with another or with several, from their repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than each of the others, by more than chance explains.
    Ahead,
    /// The same as one of the others, within 10 %, and worse than none.
    Level,
    /// Worse than one of the others, by more than chance explains.
    Behind,
    /// Not decided, because the repeats are too few or differ too much.
    NotDecided,
}

/// The rule in words, as reports print it.
pub(crate) const RULE: &str = "\
Ahead of all or behind one: at least 3 repeats a side, a t-test of the logarithms of their ratios, repeat by repeat, with \
an allowance for the number of better others and of rows (Benjamini and Hochberg, 5 %), and 1 % or more apart. Level: the 95 % interval of the ratio is within 10 %. Else not decided. A side that lacks a figure in one of its \
repeats, as one lacks it that was killed, is neither ahead nor level.";

/// One side beside several others, by one figure.
#[derive(Debug)]
pub(crate) struct Row {
    /// One comparison with each of the others; `None` where there are too few repeats.
    tests: Vec<Option<Test>>,
    /// Whether each repeat of the one side has the figure.
    is_whole: bool,
}

/// How many times better one side is than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Beside {
    /// Mean over the repeats, geometric.
    pub(crate) times: f64,
    /// Lower and upper end of the 95 % interval.
    pub(crate) interval: (f64, f64),
}

/// Judgement about a row, with its comparisons.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    /// The comparisons, in the order in which they were added; `None` for those with too few repeats.
    pub(crate) beside: Vec<Option<Beside>>,
}

/// The rows of one table, which are judged together.
#[derive(Debug, Default)]
pub(crate) struct Family {
    rows: Vec<Row>,
}

/// Statistics of the logarithm of how many times better one side is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    mean: f64,
    error: f64,
    /// Degrees of freedom: the number of repeats less one.
    freedom: f64,
    /// Least mean of sides that are told apart.
    apart: f64,
}

impl Verdict {
    /// Whether the verdict names a difference.
    pub(crate) fn is_apart(self) -> bool {
        matches!(self, Self::Ahead | Self::Behind)
    }

    /// Returns the verdict in words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Behind => "behind",
            Self::NotDecided => "not decided",
        }
    }
}

impl Row {
    /// Makes a row about `one`, without any comparison yet.
    pub(crate) fn of(one: &Sample) -> Self {
        Self { tests: Vec::new(), is_whole: one.missing() == 0 }
    }

    /// Makes a row that claims nothing, which still counts as one.
    pub(crate) fn without_claim() -> Self {
        Self { tests: Vec::new(), is_whole: false }
    }

    pub(crate) fn add(&mut self, test: Option<Test>) {
        self.tests.push(test);
    }

    /// Whether the one side is better than each of the others, be it by chance.
    pub(crate) fn leads(&self) -> bool {
        self.is_whole && self.known().next().is_some() && self.known().all(|test| test.mean > 0.0)
    }

    /// Forbids the claim to be ahead or level, as of a side that lacks a figure in one of its repeats.
    pub(crate) fn forbid_lead(&mut self) {
        self.is_whole = false;
    }

    /// Judges the row by itself, without an allowance for others. For a condition that can only take a verdict back.
    pub(crate) fn alone(&self) -> Judged {
        self.judged(Some(CHANCE))
    }

    fn known(&self) -> impl Iterator<Item = &Test> {
        self.tests.iter().flatten()
    }

    /// Returns the probability that a row with equal sides would claim the same difference; 1 for a row without a claim.
    fn chance(&self) -> f64 {
        if self.leads() {
            return self.known().map(Test::chance).fold(0.0, f64::max);
        }
        self.known().map(|test| self.chance_of_loss(test)).fold(1.0, f64::min)
    }

    /// Returns the probability that a side that is equal to the others would lose to one of them as clearly as in `test`.
    fn chance_of_loss(&self, test: &Test) -> f64 {
        let better = self.known().filter(|test| test.mean < 0.0).count();
        if test.mean < 0.0 { test.chance() * better as f64 } else { 1.0 }
    }

    /// Judges the row. `limit`: greatest chance at which the table claims a difference.
    fn judged(&self, limit: Option<f64>) -> Judged {
        let limit = limit.unwrap_or(0.0);
        let is_ahead = self.leads() && self.known().all(|test| test.chance() <= limit && test.mean >= test.apart);
        let loses = |test: &Test| self.chance_of_loss(test) <= limit && test.mean <= -test.apart;
        let no_worse = |test: &Test| test.is_within() || test.reach().0 > 0.0;
        let verdict = match () {
            () if is_ahead => Verdict::Ahead,
            () if self.known().any(loses) => Verdict::Behind,
            () if self.is_whole && self.known().all(no_worse) && self.known().any(Test::is_within) => Verdict::Level,
            () => Verdict::NotDecided,
        };
        let beside = |test: &Test| {
            let (low, high) = test.reach();
            Beside { times: test.mean.exp(), interval: (low.exp(), high.exp()) }
        };
        Judged { verdict, beside: self.tests.iter().map(|test| test.as_ref().map(beside)).collect() }
    }
}

impl Family {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Judges all rows, in the order in which they were added.
    pub(crate) fn judge(&self) -> Vec<Judged> {
        // A row with too few repeats can claim nothing, whatever its figures are.
        let can_claim = |row: &&Row| row.tests.is_empty() || row.known().next().is_some();
        let mut chances: Vec<f64> = self.rows.iter().filter(can_claim).map(Row::chance).collect();
        chances.sort_by(f64::total_cmp);
        let rows = chances.len() as f64;
        let within = |(at, chance): &(usize, &f64)| **chance <= CHANCE * (at + 1) as f64 / rows;
        let limit = chances.iter().enumerate().rfind(within).map(|(_, chance)| *chance);
        self.rows.iter().map(|row| row.judged(limit)).collect()
    }
}

impl Test {
    /// Compares `one` with `other`; `None` with too few repeats.
    pub(crate) fn of(one: &Sample, other: &Sample, better: Better) -> Option<Self> {
        let pairs = pairs(one, other);
        let times: Vec<f64> = pairs.iter().map(|(value, other)| ln(*value, better) - ln(*other, better)).collect();
        if times.len() < RUNS_MIN {
            return None;
        }
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let error = (variance.max(ROUNDING.powi(2)) / count).sqrt();
        Some(Self { mean, error, freedom: count - 1.0, apart: apart(one, other) })
    }

    /// Returns the probability that equal sides come out at least so far apart.
    fn chance(&self) -> f64 {
        2.0 * StudentsT::cdf(-(self.mean / self.error).abs(), self.freedom)
    }

    /// Returns the ends of the 95 % interval.
    fn reach(&self) -> (f64, f64) {
        let reach = self.error * StudentsT::ppf(f64::midpoint(1.0, CONFIDENCE), self.freedom);
        (self.mean - reach, self.mean + reach)
    }

    fn is_within(&self) -> bool {
        let (low, high) = self.reach();
        low.abs().max(high.abs()) <= LEVEL_WITHIN.ln()
    }
}

/// Returns the logarithm of a figure, with its sign chosen so that greater is better.
fn ln(value: f64, better: Better) -> f64 {
    let log = value.max(LEAST).ln();
    if better == Better::Higher { log } else { -log }
}

/// Returns the least difference of logarithms by which two sides are told apart: more than one step of their values, because
/// rounding alone can make two equal values one step different in each repeat.
fn apart(one: &Sample, other: &Sample) -> f64 {
    let share = |sample: &Sample| {
        let least = sample.spread().min;
        if least > 0.0 { sample.step / least } else { 0.0 }
    };
    APART_MIN.max(1.0 + share(one).max(share(other)) + f64::EPSILON.sqrt()).ln()
}

/// Pairs the repeats of one number. If fewer than a verdict needs have one, as of files of two days, the repeats are paired in their order.
fn pairs(one: &Sample, other: &Sample) -> Vec<(f64, f64)> {
    let by_number: Vec<_> =
        one.values.iter().filter_map(|(repeat, value)| Some((*value, other.of_repeat(*repeat)?))).collect();
    if by_number.len() >= RUNS_MIN && one.has_numbers() && other.has_numbers() {
        return by_number;
    }
    let values = |sample: &Sample| sample.values.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    values(one).into_iter().zip(values(other)).collect()
}

#[cfg(test)]
mod tests {
    use workload::Rng;

    use super::*;

    /// Makes the figures of a cell of `runs` runs, of one session.
    fn sample(values: Vec<(u32, f64)>, runs: usize) -> Sample {
        Sample::new(values, runs)
    }

    /// Judges one side beside each of the others, as a table of one row.
    fn alone(one: &Sample, others: &[&Sample], better: Better) -> Judged {
        let mut row = Row::of(one);
        others.iter().for_each(|other| row.add(Test::of(one, other, better)));
        let mut family = Family::default();
        family.add(row);
        family.judge().remove(0)
    }

    /// Draws a normal number, by the method of Box and Muller.
    fn normal(rng: &mut Rng) -> f64 {
        let uniform = |rng: &mut Rng| (rng.below(1 << 52) + 1) as f64 / (1u64 << 52) as f64;
        (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
    }

    /// Judges `rows` rows of an engine beside others measured in turns with it, each so many times slower. All share a
    /// disturbance in each repeat.
    fn table(rng: &mut Rng, rows: usize, repeats: u32, noise: f64, times: &[f64]) -> Vec<Verdict> {
        let mut family = Family::default();
        for _ in 0..rows {
            let weather: Vec<f64> = (0..repeats).map(|_| 0.2 * normal(rng)).collect();
            let mut engine = |mean: f64| {
                let value = |(repeat, weather): (u32, &f64)| (repeat, mean * (weather + noise * normal(rng)).exp());
                sample((0..repeats).zip(&weather).map(value).collect(), repeats as usize)
            };
            let one = engine(500.0);
            let mut row = Row::of(&one);
            times.iter().for_each(|times| row.add(Test::of(&one, &engine(500.0 * times), Better::Lower)));
            family.add(row);
        }
        family.judge().into_iter().map(|judged| judged.verdict).collect()
    }

    fn share(verdicts: &[Verdict], wanted: Verdict) -> f64 {
        verdicts.iter().filter(|verdict| **verdict == wanted).count() as f64 / verdicts.len() as f64
    }

    #[test]
    fn equal_engines_are_level_in_95_of_100_rows_and_95_of_100_tables_name_no_difference() {
        // At most three standard deviations of a share of the tables above 5 %. Not zero either, because the rule is no
        // stricter than it says. Engines that are far slower beside the equal one change nothing.
        for (times, tables, expected) in [(&[1.0][..], 1000, 30..=71), (&[1.0, 3.0, 3.0, 3.0, 3.0, 3.0], 300, 1..=26)] {
            let mut rng = Rng::new(1);
            let mut rows = Vec::new();
            let mut named = 0;
            for _ in 0..tables {
                let table = table(&mut rng, 200, 5, 0.02, times);
                named += u32::from(table.iter().any(|verdict| [Verdict::Ahead, Verdict::Behind].contains(verdict)));
                rows.extend(table);
            }
            assert!(share(&rows, Verdict::Level) >= 0.95, "{}", share(&rows, Verdict::Level));
            assert!(expected.contains(&named), "{named} of {tables} tables of equal engines name a difference");
        }
    }

    #[test]
    fn as_much_worse_is_found_as_often_as_as_much_better() {
        let mut rng = Rng::new(3);
        let mut found = |times: f64, wanted| {
            let others = [times, 3.0, 3.0, 3.0, 3.0, 3.0];
            share(&(0..20).flat_map(|_| table(&mut rng, 12, 5, 0.07, &others)).collect::<Vec<_>>(), wanted)
        };
        let (better, worse) = (found(1.2, Verdict::Ahead), found(1.0 / 1.2, Verdict::Behind));
        assert!(better > 0.5 && (better - worse).abs() < 0.15, "ahead {better}, behind {worse}");
    }

    #[test]
    fn a_difference_is_found_and_noise_decides_nothing() {
        let mut rng = Rng::new(2);
        let found = table(&mut rng, 200, 5, 0.02, &[1.2, 1.3]);
        assert!(share(&found, Verdict::Ahead) > 0.99, "{}", share(&found, Verdict::Ahead));
        let noisy = table(&mut rng, 200, 5, 0.5, &[1.0]);
        assert!(share(&noisy, Verdict::NotDecided) > 0.95, "{}", share(&noisy, Verdict::NotDecided));
        let few = table(&mut rng, 200, 2, 0.02, &[3.0]);
        assert_eq!(share(&few, Verdict::NotDecided), 1.0);
    }

    #[test]
    fn weather_that_both_had_is_no_noise_and_that_of_one_is() {
        let of = |factor: f64| sample((0..5).map(|at| (at, factor * 1.5f64.powi(at as i32))).collect(), 5);
        let (one, other) = (of(100.0), of(120.0));
        let ahead = alone(&one, &[&other], Better::Lower);
        assert_eq!((ahead.verdict, alone(&one, &[&other], Better::Higher).verdict), (Verdict::Ahead, Verdict::Behind));
        let (low, high) = ahead.beside[0].unwrap().interval;
        assert!(low > 1.19 && high < 1.21, "{low} {high}");
        // Repeats of other numbers are paired in their order.
        let later = sample((0..5).map(|at| (at + 5, 120.0 * 1.5f64.powi(4 - at as i32))).collect(), 5);
        assert_eq!(alone(&one, &[&later], Better::Lower).verdict, Verdict::NotDecided);
    }

    #[test]
    fn a_side_that_lacks_a_repeat_is_neither_ahead_nor_level() {
        let whole = |value: f64| sample((0..5).map(|at| (at, value)).collect(), 5);
        let cut = |value: f64| sample((0..4).map(|at| (at, value)).collect(), 5);
        assert_eq!(alone(&cut(100.0), &[&whole(200.0)], Better::Lower).verdict, Verdict::NotDecided);
        assert_eq!(alone(&cut(100.0), &[&whole(100.0)], Better::Lower).verdict, Verdict::NotDecided);
        assert_eq!(alone(&cut(100.0), &[&whole(50.0)], Better::Lower).verdict, Verdict::Behind);
        assert_eq!(alone(&whole(100.0), &[&cut(200.0)], Better::Lower).verdict, Verdict::Ahead);
    }

    #[test]
    fn a_step_of_the_clock_decides_nothing() {
        let of = |value: f64| {
            let mut figures = sample((0..5).map(|at| (at, value)).collect(), 5);
            figures.step = 1.0;
            figures
        };
        assert_eq!(alone(&of(20.0), &[&of(21.0)], Better::Lower).verdict, Verdict::Level);
        assert_eq!(alone(&of(2000.0), &[&of(2100.0)], Better::Lower).verdict, Verdict::Ahead);
    }

    #[test]
    fn runs_of_one_number_are_paired_in_their_order() {
        let of = |values: [f64; 5]| sample(values.map(|value| (0, value)).to_vec(), 5);
        let (one, other) = (of([100.0, 101.0, 99.0, 100.5, 99.5]), of([120.0, 40.0, 300.0, 60.0, 200.0]));
        // Each of the one's would be compared with the first of the other's.
        assert_eq!(alone(&one, &[&other], Better::Lower).verdict, Verdict::NotDecided);
    }

    #[test]
    fn zeros_are_figures_and_what_is_equal_to_the_last_digit_is_level() {
        let of = |value: f64| sample((0..3).map(|at| (at, value)).collect(), 3);
        for (one, other, verdict) in [
            (0.0, 0.0, Verdict::Level),
            (0.0, 0.02, Verdict::Ahead),
            (0.02, 0.0, Verdict::Behind),
            (100.0, 100.9, Verdict::Level),
        ] {
            assert_eq!(alone(&of(one), &[&of(other)], Better::Lower).verdict, verdict, "{one} {other}");
        }
    }

    #[test]
    fn one_beside_several() {
        use Verdict::{Ahead, Behind, Level, NotDecided};
        let of = |mean: f64, noise: f64| {
            let value = |(at, way): (u32, f64)| (at, mean * (1.0 + noise * way));
            sample((0..5).zip([0.0, 1.0, -1.0, 0.5, -0.5]).map(value).collect(), 5)
        };
        let (own, slow, equal, fast, noisy) =
            (of(100.0, 0.0), of(200.0, 0.01), of(100.0, 0.01), of(80.0, 0.01), of(110.0, 0.5));
        let once = sample(vec![(0, 500.0)], 1);
        for (others, verdict) in [
            (&[&slow, &slow][..], Ahead),
            (&[&slow, &equal], Level),
            (&[&slow, &noisy], NotDecided),
            (&[&noisy, &fast], Behind),
            (&[&slow, &once], Ahead),
            (&[&once], NotDecided),
        ] {
            assert_eq!(alone(&own, others, Better::Lower).verdict, verdict, "{others:?}");
        }
    }
}
