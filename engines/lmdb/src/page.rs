//! LMDB's layout of a page and of a table's record, on 64 bits in the byte order of the machine (`mdb.c`, `MDB_page`,
//! `MDB_node` and `MDB_db` of 0.9).
//!
//! Owns: the offsets of the fields. Does no I/O. A field outside of the page is `None`.

pub(crate) const PAGE_HEADER_BYTES: usize = 16;
pub(crate) const PAGE_FLAGS_AT: usize = 10;
pub(crate) const PAGE_LOWER_AT: usize = 12;
pub(crate) const BRANCH: u16 = 1;
pub(crate) const NODE_HEADER_BYTES: usize = 8;
pub(crate) const TABLE_DEPTH_AT: usize = 6;
pub(crate) const TABLE_ROOT_AT: usize = 40;
pub(crate) const TABLE_BYTES: usize = 48;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Returns the offset in a page at which the node of child `child` begins.
pub(crate) fn node(page: &[u8], child: usize) -> Option<usize> {
    let children = usize::from(u16_at(page, PAGE_LOWER_AT)?).checked_sub(PAGE_HEADER_BYTES)? / 2;
    let at = (child < children).then_some(PAGE_HEADER_BYTES + 2 * child)?;
    u16_at(page, at).map(usize::from)
}

/// Returns the page number of child `child`. It has 48 bits; the highest 16 of them are in the field that holds flags
/// in a leaf.
pub(crate) fn child_number(page: &[u8], child: usize) -> Option<u64> {
    let at = node(page, child)?;
    let part = |offset| u16_at(page, at + offset).map(u64::from);
    Some(part(0)? | part(2)? << 16 | part(4)? << 32)
}
