//! Recognizes token accounts without their whole data.
//!
//! Owns: the data slices that are needed for the rule of [`solana::token`]. Must not: do I/O, allocate, or panic on any
//! message of a server. Runs on the receivers' tasks.
//!
//! A Yellowstone server's `token_account_state` asks the same of an account's data as the rule, but not which of the
//! two programs owns it.
//!
//! An update does not give the length of an account's data. The server drops a slice that reaches beyond the end of the
//! data, and sends the other slices one after the other. Each requested byte that arrives therefore proves that the
//! data reach that far:
//!
//! | length of the data | below 64 (mint: 32) | up to 108 | up to 164 | 165 | up to 354 | 355 | 356 and more |
//! |---|---|---|---|---|---|---|---|
//! | bytes that arrive | 0 | 32 | 33 | 34 | 35 | 36 | 37 |

use solana::token::{ACCOUNT_BYTES, MULTISIG_BYTES, STATE_OFFSET, TokenProgram};

/// Length of the value's slice in bytes. It comes before [`SHAPE_SLICES`].
const VALUE_BYTES: usize = 32;

/// Offset and length of the slices that reveal the state, the length and the account type, ascending by offset.
pub(super) const SHAPE_SLICES: [(u64, u64); 5] =
    [(STATE_OFFSET, 1), (ACCOUNT_BYTES - 1, 1), (ACCOUNT_BYTES, 1), (MULTISIG_BYTES - 1, 1), (MULTISIG_BYTES, 1)];

/// Offsets at which the data of a mint say whether it has an authority.
const MINT_TAGS: [u64; 2] = [0, 46];

/// Index of the state in the bytes that arrive.
const STATE: usize = VALUE_BYTES;
/// Index of the account type in the bytes that arrive.
const TYPE: usize = VALUE_BYTES + 2;

/// Returns the value of an account of `program` with lamports, from the value's slice and [`SHAPE_SLICES`] of its data.
/// `None` when it is no token account.
///
/// # Errors
/// The number of bytes, when they are a part of the value's slice, or more than all slices together: the server does not
/// send the data that were requested.
pub(super) fn value(program: TokenProgram, sliced: &[u8]) -> Result<Option<[u8; 32]>, usize> {
    // The shortest data that send as many bytes. The rule tells apart no others that do.
    let data_len = match sliced.len().checked_sub(VALUE_BYTES) {
        None if sliced.is_empty() => 0,
        Some(0) => 0,
        Some(1) => STATE_OFFSET + 1,
        Some(2) => ACCOUNT_BYTES,
        Some(3) => ACCOUNT_BYTES + 1,
        Some(4) => MULTISIG_BYTES,
        Some(5) => MULTISIG_BYTES + 1,
        _ => return Err(sliced.len()),
    };
    let is_account = program.is_account(data_len, sliced.get(STATE).copied(), sliced.get(TYPE).copied());
    Ok(sliced.first_chunk::<VALUE_BYTES>().copied().filter(|_| is_account))
}

/// Whether these bytes are too few for the data of a token account or a multisig: those of a mint without extensions, or of
/// a server that leaves slices out.
pub(super) fn is_short(sliced: &[u8]) -> bool {
    sliced.len() < TYPE
}

/// Whether this value's slice, which begins at `offset`, is of a mint. A mint has two optional authorities, and four bytes
/// before each say whether it is there. The address in a token account's slice is random.
pub(super) fn is_mint(offset: u64, sliced: &[u8]) -> bool {
    let tag = MINT_TAGS.iter().find_map(|tag| usize::try_from(tag.checked_sub(offset)?).ok());
    tag.and_then(|tag| sliced.get(tag..)?.first_chunk()).is_some_and(|tag| u32::from_le_bytes(*tag) <= 1)
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
    fn a_mint_is_told_from_an_account_whose_other_slices_are_left_out() {
        for (authority, freeze) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut mint = vec![7; 82];
            for (at, tag) in [(0, authority), (46, freeze)] {
                mint[at..at + 4].copy_from_slice(&u32::to_le_bytes(tag));
            }
            for offset in [0, 32] {
                let mint = sliced(&mint, offset);
                assert!(mint.len() == 32 && is_short(&mint) && is_mint(offset, &mint), "{offset} {authority} {freeze}");
                assert!(is_mint(offset, &sliced(&[0; 82], offset)), "not initialised yet");
                for len in [165, 170, 355, 400] {
                    let account = sliced(&vec![7; len], offset);
                    assert!(!is_short(&account) && is_short(&account[..33]) && !is_mint(offset, &account[..32]));
                }
            }
        }
    }

    #[test]
    fn data_that_honest_slices_cannot_give_are_refused() {
        for len in (1..32).chain([38, 82, 165, 355]) {
            assert_eq!(value(TokenProgram::Token, &vec![1; len]), Err(len));
        }
    }
}
