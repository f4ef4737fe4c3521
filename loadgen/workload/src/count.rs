//! Parses numbers as people write them, for the flags and files of every program.
//!
//! Must not: round. Plain functions, used where the arguments are parsed.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Reads `5000000`, `5_000_000`, `5,000,000`, `5M` or `2.5M`; k, M and G are a thousand, a million and a billion.
///
/// # Errors
/// A text that is not such a number, or a number that the type cannot hold.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let wrong = || format!("not a number: {text:?}: such as 5000000, 5_000_000 or 5M");
    let (digits, zeros) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 3),
        Some((at, 'm' | 'M')) => (&text[..at], 6),
        Some((at, 'g' | 'G')) => (&text[..at], 9),
        _ => (text, 0),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |digits: &str| {
        digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.chars().all(|char| char.is_ascii_digit() || char == '_' || char == ',')
    };
    let part_is_number = part.chars().all(|char| char.is_ascii_digit()) && part.is_empty() != digits.contains('.');
    if !is_number(whole) || !part_is_number || part.len() > zeros {
        return Err(wrong());
    }
    let mut all: String = whole.chars().filter(char::is_ascii_digit).collect();
    all.push_str(part);
    all.extend(std::iter::repeat_n('0', zeros - part.len()));
    let number = all.parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("too large: {text:?}: the most is {}", u64::MAX >> (64 - 8 * size_of::<T>().min(8))))
}

/// Returns a parser as [`count`] that refuses numbers outside of these bounds.
pub fn count_within<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64> + PartialOrd + Display + Clone,
{
    move |text: &str| {
        let number = count(text)?;
        let refused = || format!("{number} is out of bounds: give {} to {}", bounds.start(), bounds.end());
        if bounds.contains(&number) { Ok(number) } else { Err(refused()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        for (text, expected) in [
            ("0", 0),
            ("5000000", 5_000_000),
            ("5_000_000", 5_000_000),
            ("5,000,000", 5_000_000),
            ("5M", 5_000_000),
            ("2.5m", 2_500_000),
            ("300k", 300_000),
            ("1G", 1_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(count::<u64>(text), Ok(expected), "{text}");
        }
        assert_eq!(count::<u32>("1.2G"), Ok(1_200_000_000));
    }

    #[test]
    fn anything_else_is_told_apart() {
        for text in ["", "-5", "M", "five", "5.M", "1.5", ".5M", "1.2345k", "5MB", "0x10", "_5", "5 M", "1.5.5M"] {
            assert!(count::<u64>(text).unwrap_err().starts_with("not a number"), "{text}");
        }
        for text in ["18446744073709551616", "18446744074G"] {
            assert!(count::<u64>(text).unwrap_err().starts_with("too large"), "{text}");
        }
        assert_eq!(count::<u32>("5G").unwrap_err(), "too large: \"5G\": the most is 4294967295");
        let within = count_within(1..=10_000u32);
        assert_eq!([within("10k"), within("1")], [Ok(10_000), Ok(1)]);
        for text in ["0", "11k"] {
            assert!(within(text).unwrap_err().contains("give 1 to 10000"), "{text}");
        }
    }
}
