//! Files of accounts: one record after the other, as agave's AppendVec lays them out.
//!
//! Owns: the layout of a record and of a file. Must not: know whose accounts they are. Plain values, used on any
//! thread.
//!
//! ```text
//! 0x00 write version, 0 | 0x08 bytes of data | 0x10 key | 0x30 lamports | 0x38 rent epoch | 0x40 owner
//! 0x60 executable | 0x61 seven bytes of memory that nobody has set | 0x68 hash, zeros | 0x88 data
//! ```
//! A record begins at a multiple of eight bytes. A file ends with the last byte of its last record, or, if an older
//! agave has written it, with zeros up to its capacity.

use workload::Key;

/// Bytes of a record before its data.
pub const HEADER_BYTES: usize = 136;
/// Largest data of an account.
pub const DATA_BYTES_MAX: usize = 10 << 20;
/// A record begins at a multiple of this.
const ALIGN_BYTES: usize = 8;
/// Capacities were multiples of a page of memory.
const CAPACITY_BYTES: usize = 4096;

/// One version of an account.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Address by which the account is known.
    pub key: &'a Key,
    /// Balance; 0 for a tombstone.
    pub lamports: u64,
    /// Epoch in which rent is due: nearly always 2^64-1, which means never.
    pub rent_epoch: u64,
    /// Address of the owning program.
    pub owner: &'a [u8; 32],
    /// Whether the account is a program.
    pub executable: bool,
    /// The bytes after `executable`. agave leaves there whatever the memory held.
    pub garbage: [u8; 7],
    /// Data, of at most [`DATA_BYTES_MAX`] bytes.
    pub data: &'a [u8],
}

/// Contents of a file of accounts.
#[derive(Clone, Debug, Default)]
pub struct AccountsFile {
    bytes: Vec<u8>,
}

impl AccountsFile {
    /// Appends a record, at the next multiple of eight.
    pub fn push(&mut self, record: &Record<'_>) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        let mut header = [0; HEADER_BYTES];
        header[0x08..0x10].copy_from_slice(&(record.data.len() as u64).to_le_bytes());
        header[0x10..0x30].copy_from_slice(record.key);
        header[0x30..0x38].copy_from_slice(&record.lamports.to_le_bytes());
        header[0x38..0x40].copy_from_slice(&record.rent_epoch.to_le_bytes());
        header[0x40..0x60].copy_from_slice(record.owner);
        header[0x60] = u8::from(record.executable);
        header[0x61..0x68].copy_from_slice(&record.garbage);
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(record.data);
    }

    /// Fills the file with zeros up to its capacity. Returns `false` if it is full already.
    pub fn pad(&mut self) -> bool {
        let bytes = self.bytes.len();
        self.bytes.resize(bytes.next_multiple_of(CAPACITY_BYTES), 0);
        self.bytes.len() > bytes
    }

    /// Returns everything in the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes every record. The memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}
