//! A Parquet file of pairs: two columns of 32 bytes.
//!
//! Owns: its schema and the size of its row groups. Must not: choose pairs. Runs on the thread that writes the file.

use std::io::{BufWriter, Write};
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use engine_api::{Key, Value};
use parquet::data_type::{ByteArray, FixedLenByteArray, FixedLenByteArrayType};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const SCHEMA: &str =
    "message pairs { required fixed_len_byte_array(32) key; required fixed_len_byte_array(32) value; }";

/// Number of pairs of a row group, which are held in memory until it is written: 16 MB.
const GROUP_PAIRS: usize = 1 << 18;

/// The file, and the pairs of the row group that is collected.
pub(crate) struct Table {
    writer: SerializedFileWriter<BufWriter<Box<dyn Write + Send>>>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Table {
    /// Begins the file.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn new(file: BufWriter<Box<dyn Write + Send>>) -> Result<Self> {
        // Neither keys nor values repeat enough for a dictionary, and random bytes cannot be compressed.
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let writer = SerializedFileWriter::new(file, Arc::new(parse_message_type(SCHEMA)?), Arc::new(properties))?;
        Ok(Self { writer, keys: Vec::new(), values: Vec::new() })
    }

    /// Adds a pair.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn pair(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        if self.keys.len() == GROUP_PAIRS * size_of::<Key>() { self.group() } else { Ok(()) }
    }

    /// Writes the pairs that are collected as a row group.
    fn group(&mut self) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
        for column in [&mut self.keys, &mut self.values] {
            let bytes = Bytes::from(std::mem::take(column));
            let cell = |at: usize| FixedLenByteArray::from(ByteArray::from(bytes.slice(at..at + size_of::<Key>())));
            let cells: Vec<FixedLenByteArray> = (0..bytes.len()).step_by(size_of::<Key>()).map(cell).collect();
            let Some(mut writer) = group.next_column()? else { continue };
            writer.typed::<FixedLenByteArrayType>().write_batch(&cells, None, None)?;
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Writes the rest, and these names with their texts.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn finish(mut self, metadata: &[(&str, &str)]) -> Result<()> {
        if !self.keys.is_empty() {
            self.group()?;
        }
        for (name, text) in metadata {
            self.writer.append_key_value_metadata(KeyValue::new((*name).to_owned(), (*text).to_owned()));
        }
        self.writer.into_inner()?.flush()?;
        Ok(())
    }
}
