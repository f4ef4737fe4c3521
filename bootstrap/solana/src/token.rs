//! Decides which accounts of the token programs are token accounts.
//!
//! Owns: agave's rule (`valid_account_data` of the crate spl-generic-token) and the addresses of the two programs.
//! Must not: do I/O, allocate, or panic on any data. Any thread.
//!
//! The rule: an account of Token has exactly 165 bytes. One of Token-2022 has 165 bytes, or more than 165 but not 355,
//! with a 2 at byte 165. Both have a state other than 0 at byte 108. Everything else that belongs to these programs is
//! a mint (82 bytes, or longer with a 1 at byte 165), a multisig (355 bytes, which may hold a 2 at byte 165), or
//! nothing yet.

/// Address of the SPL Token program.
pub const TOKEN_PROGRAM: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";

/// Address of the Token-2022 program.
pub const TOKEN_2022_PROGRAM: &str = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb";

/// Offset of a token account's state: 0 is uninitialised, 1 initialised, 2 frozen.
pub const STATE_OFFSET: u64 = 108;

/// Length of a token account without extensions, in bytes. The account type comes after it.
pub const ACCOUNT_BYTES: u64 = 165;

/// Length of a multisig, in bytes. The Token-2022 program makes no other account of this length.
pub const MULTISIG_BYTES: u64 = 355;

/// Account type of a token account; that of a mint is 1.
const TYPE_ACCOUNT: u8 = 2;

const TOKEN_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_PROGRAM.as_bytes()).into_array_const_unwrap();
const TOKEN_2022_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_2022_PROGRAM.as_bytes()).into_array_const_unwrap();

/// The two programs whose accounts hold tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenProgram {
    /// The older program, at [`TOKEN_PROGRAM`].
    Token,
    /// The newer program with extensions, at [`TOKEN_2022_PROGRAM`].
    Token2022,
}

impl TokenProgram {
    /// Returns the token program with this address; `None` for every other program.
    pub fn of(owner: &[u8; 32]) -> Option<Self> {
        match *owner {
            TOKEN_PROGRAM_BYTES => Some(Self::Token),
            TOKEN_2022_PROGRAM_BYTES => Some(Self::Token2022),
            _ => None,
        }
    }

    /// Whether an account of this program is a token account. Its data have `data_len` bytes, and hold `state` at
    /// [`STATE_OFFSET`] and `kind` at [`ACCOUNT_BYTES`]; `None` stands for data that do not reach that far.
    pub fn is_account(self, data_len: u64, state: Option<u8>, kind: Option<u8>) -> bool {
        let shaped = match self {
            _ if data_len == ACCOUNT_BYTES => true,
            Self::Token => false,
            Self::Token2022 => data_len > ACCOUNT_BYTES && data_len != MULTISIG_BYTES && kind == Some(TYPE_ACCOUNT),
        };
        shaped && state.is_some_and(|state| state != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_addresses_are_what_base58_says() {
        for (text, program) in [(TOKEN_PROGRAM, TokenProgram::Token), (TOKEN_2022_PROGRAM, TokenProgram::Token2022)] {
            let bytes: [u8; 32] = bs58::decode(text).into_vec().unwrap().try_into().unwrap();
            assert_eq!(TokenProgram::of(&bytes), Some(program));
        }
        assert_eq!(TokenProgram::of(&[0; 32]), None);
    }
}
