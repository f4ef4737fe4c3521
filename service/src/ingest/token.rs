//! Which accounts of the token programs are token accounts, told without their whole data.
//!
//! Owns: agave's rule (`valid_account_data` of the crate spl-generic-token), and the slices of the data that decide it.
//! Must not: do I/O, allocate, or panic on what a server sends. Runs on the receivers' tasks.
//!
//! The rule: an account of Token has exactly 165 bytes. One of Token-2022 has 165 bytes, or more than 165 but not 355,
//! with a 2 at byte 165. Both have a state other than 0 at byte 108. Everything else that belongs to these programs is
//! a mint (82 bytes, or longer with a 1 at byte 165), a multisig (355 bytes, which may hold a 2 at byte 165), or
//! nothing yet. A Yellowstone server's `token_account_state` asks the same of an account's data, but not which of the
//! two programs owns it.
//!
//! An update does not say how long an account's data is. The server drops a slice that reaches beyond the end of the
//! data and sends the others one after the other, so each byte that is asked for also tells that the data reach there:
//!
//! | length of the data | below 64 (mint: 32) | up to 108 | up to 164 | 165 | up to 354 | 355 | 356 and more |
//! |---|---|---|---|---|---|---|---|
//! | bytes that arrive | 0 | 32 | 33 | 34 | 35 | 36 | 37 |

use super::extract::bytes_32;

/// Where a token account keeps its state: 0 is uninitialised, 1 initialised, 2 frozen.
const STATE_OFFSET: u64 = 108;

/// Length of a token account without extensions; the account type comes after it.
const ACCOUNT_BYTES: u64 = 165;

/// Length of a multisig. The Token-2022 program makes no other account of this length.
const MULTISIG_BYTES: u64 = 355;

/// Account type of a token account, against 1 of a mint.
const TYPE_ACCOUNT: u8 = 2;

/// Bytes of the slice that holds the value, which comes before [`SHAPE_SLICES`].
const VALUE_BYTES: usize = 32;

/// Offset and length of the slices that tell the state, the length and the account type; in this order.
pub(super) const SHAPE_SLICES: [(u64, u64); 5] =
    [(STATE_OFFSET, 1), (ACCOUNT_BYTES - 1, 1), (ACCOUNT_BYTES, 1), (MULTISIG_BYTES - 1, 1), (MULTISIG_BYTES, 1)];

/// Positions in the bytes that arrive.
const STATE: usize = VALUE_BYTES;
const TYPE: usize = VALUE_BYTES + 2;

/// How many bytes arrive of an account of this length.
const OF_165: usize = VALUE_BYTES + 2;
const OF_MULTISIG: usize = VALUE_BYTES + 4;
const OF_ANY_LONGER: usize = VALUE_BYTES + SHAPE_SLICES.len();

/// The two programs whose accounts hold tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenProgram {
    Token,
    Token2022,
}

/// The value of an account of `program` with lamports, from the value's slice and [`SHAPE_SLICES`] of its data; `None`
/// when it is no token account.
///
/// # Errors
/// The number of bytes, when it is more than all slices together: the server sends data that was not asked for.
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

    /// What a server sends of `data`: its slices, each dropped where it does not fit.
    fn sliced(data: &[u8], value_offset: u64) -> Vec<u8> {
        let slices = std::iter::once((value_offset, 32)).chain(SHAPE_SLICES);
        let ranges = slices.map(|(offset, length)| offset as usize..(offset + length) as usize);
        ranges.filter_map(|range| data.get(range)).flatten().copied().collect()
    }

    /// Agave's rule on the whole data.
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
