//! Decides which accounts of the token programs are token accounts, without their whole data.
//!
//! Owns: agave's rule (`valid_account_data` of the crate spl-generic-token), and the data slices that are needed for
//! it. Must not: do I/O, allocate, or panic on any message of a server. Runs on the receivers' tasks.
//!
//! The rule: an account of Token has exactly 165 bytes. One of Token-2022 has 165 bytes, or more than 165 but not 355,
//! with a 2 at byte 165. Both have a state other than 0 at byte 108. Everything else that belongs to these programs is
//! a mint (82 bytes, or longer with a 1 at byte 165), a multisig (355 bytes, which may hold a 2 at byte 165), or
//! nothing yet. A Yellowstone server's `token_account_state` asks the same of an account's data, but not which of the
//! two programs owns it.
//!
//! An update does not give the length of an account's data. The server drops a slice that reaches beyond the end of the
//! data, and sends the other slices one after the other. Each requested byte that arrives therefore proves that the
//! data reach that far:
//!
//! | length of the data | below 64 (mint: 32) | up to 108 | up to 164 | 165 | up to 354 | 355 | 356 and more |
//! |---|---|---|---|---|---|---|---|
//! | bytes that arrive | 0 | 32 | 33 | 34 | 35 | 36 | 37 |

use super::extract::bytes_32;

/// Offset of a token account's state: 0 is uninitialised, 1 initialised, 2 frozen.
const STATE_OFFSET: u64 = 108;

/// Length of a token account without extensions, in bytes. The account type comes after it.
const ACCOUNT_BYTES: u64 = 165;

/// Length of a multisig, in bytes. The Token-2022 program makes no other account of this length.
const MULTISIG_BYTES: u64 = 355;

/// Account type of a token account; that of a mint is 1.
const TYPE_ACCOUNT: u8 = 2;

/// Length of the value's slice in bytes. It comes before [`SHAPE_SLICES`].
const VALUE_BYTES: usize = 32;

/// Offset and length of the slices that reveal the state, the length and the account type, ascending by offset.
pub(super) const SHAPE_SLICES: [(u64, u64); 5] =
    [(STATE_OFFSET, 1), (ACCOUNT_BYTES - 1, 1), (ACCOUNT_BYTES, 1), (MULTISIG_BYTES - 1, 1), (MULTISIG_BYTES, 1)];

/// Index of the state in the bytes that arrive.
const STATE: usize = VALUE_BYTES;
/// Index of the account type in the bytes that arrive.
const TYPE: usize = VALUE_BYTES + 2;

/// Number of bytes that arrive of an account with 165 bytes.
const OF_165: usize = VALUE_BYTES + 2;
/// Number of bytes that arrive of an account with as many bytes as a multisig.
const OF_MULTISIG: usize = VALUE_BYTES + 4;
/// Number of bytes that arrive of an account longer than a multisig: all slices.
const OF_ANY_LONGER: usize = VALUE_BYTES + SHAPE_SLICES.len();

/// The two programs whose accounts hold tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenProgram {
    Token,
    Token2022,
}

/// Returns the value of an account of `program` with lamports, from the value's slice and [`SHAPE_SLICES`] of its data.
/// `None` when it is no token account.
///
/// # Errors
/// The number of bytes, when they are more than all slices together: the server sends data that were not requested.
pub(super) fn value(program: TokenProgram, sliced: &[u8]) -> Result<Option<[u8; 32]>, usize> {
    let shaped = match (program, sliced.len()) {
        (_, len) if len > OF_ANY_LONGER => return Err(len),
        (_, OF_165) => true,
        (TokenProgram::Token, _) => false,
        (TokenProgram::Token2022, OF_MULTISIG) => false,
        (TokenProgram::Token2022, _) => sliced.get(TYPE) == Some(&TYPE_ACCOUNT),
    };
    let initialised = sliced.get(STATE).is_some_and(|state| *state != 0);
    Ok(sliced.get(..VALUE_BYTES).and_then(bytes_32).filter(|_| shaped && initialised))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that a server sends of `data`: each slice, unless it reaches beyond the end.
    fn sliced(data: &[u8], value_offset: u64) -> Vec<u8> {
        let slices = std::iter::once((value_offset, 32)).chain(SHAPE_SLICES);
        let ranges = slices.map(|(offset, length)| offset as usize..(offset + length) as usize);
        ranges.filter_map(|range| data.get(range)).flatten().copied().collect()
    }

    /// Applies agave's rule to the whole data.
    fn valid(program: TokenProgram, data: &[u8]) -> bool {
        let initialised = |data: &[u8]| data[108] != 0;
        match program {
            _ if data.len() == 165 => initialised(data),
            TokenProgram::Token => false,
            TokenProgram::Token2022 => data.len() > 165 && data.len() != 355 && data[165] == 2 && initialised(data),
        }
    }

    #[test]
    fn the_slices_tell_what_the_whole_data_tell() {
        for program in [TokenProgram::Token, TokenProgram::Token2022] {
            for value_offset in [0, 32] {
                for len in (0..=400).chain([1000, 10_240, 60_000]) {
                    for (state, kind) in [(0, 2), (1, 2), (2, 2), (3, 2), (255, 2), (1, 0), (1, 1), (1, 3), (0, 0)] {
                        let mut data = vec![7; len];
                        for (at, byte) in [(108, state), (165, kind)] {
                            data.get_mut(at).into_iter().for_each(|place| *place = byte);
                        }
                        let expected = valid(program, &data).then_some([7; 32]);
                        let told = value(program, &sliced(&data, value_offset));
                        assert_eq!(told, Ok(expected), "{program:?} len={len} state={state} type={kind}");
                    }
                }
            }
        }
    }

    #[test]
    fn data_that_was_not_asked_for_are_refused() {
        for len in [38, 82, 165, 355] {
            assert_eq!(value(TokenProgram::Token, &vec![1; len]), Err(len));
        }
    }
}
