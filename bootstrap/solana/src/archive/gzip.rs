//! Decoder of gzip members, one after the other, as pigz and `cat` make them.
//!
//! Owns: the step from one member to the next, and the padding after the last one. Must not: know the contents. Runs on the
//! thread that reads.

use std::io::{self, BufRead, ErrorKind, Read};

use flate2::bufread::GzDecoder;

/// Decoder of all members. Zeros may follow the last one, as the program gzip has it.
pub struct Gzip<R> {
    /// `None` after the last member and its padding.
    member: Option<GzDecoder<R>>,
    is_padded: bool,
}

impl<R: BufRead> Gzip<R> {
    /// Decodes the members of `packed`.
    pub fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)), is_padded: false }
    }

    /// Begins the member after the one that has ended, or ends the stream.
    fn next_member(&mut self) -> io::Result<()> {
        while let Some(ended) = &mut self.member {
            let packed = ended.get_mut();
            let bytes = packed.fill_buf()?;
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            if bytes.is_empty() {
                self.member = None;
            } else if zeros > 0 {
                packed.consume(zeros);
                self.is_padded = true;
            } else if self.is_padded {
                return Err(io::Error::new(ErrorKind::InvalidData, "there are bytes after a gzip member's padding"));
            } else {
                self.member = self.member.take().map(|ended| GzDecoder::new(ended.into_inner()));
                return Ok(());
            }
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            self.next_member()?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write as _};

    use super::*;

    fn member(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    /// Hands out one byte at a time, and before each of them says that a signal came.
    struct Interrupted<'a>(&'a [u8], bool);

    impl Read for Interrupted<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(ErrorKind::Interrupted.into()) } else { (&mut self.0).take(1).read(out) }
        }
    }

    fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
        let (mut whole, mut slow) = (Vec::new(), Vec::new());
        let ended = Gzip::new(packed).read_to_end(&mut whole);
        let other = Gzip::new(BufReader::with_capacity(1, Interrupted(packed, false))).read_to_end(&mut slow);
        assert_eq!((whole == slow, ended.is_ok()), (true, other.is_ok()));
        ended.map(|_| whole)
    }

    #[test]
    fn members_are_one_stream_and_zeros_after_the_last_are_padding() {
        let (one, two) = (member(&[1; 5000]), member(b"two"));
        let both = [&one[..], &member(b""), &two].concat();
        let expected = [&[1; 5000][..], b"two"].concat();
        for padding in [0, 1, 511, 100_000] {
            assert_eq!(unpack(&[&both[..], &vec![0; padding]].concat()).unwrap(), expected, "{padding}");
        }
        for (wrong, what) in [
            ([&one[..], &[0], &two].concat(), "a member after padding"),
            ([&both[..], &[0, 0, 7]].concat(), "a byte after padding"),
            ([&both[..], &[7]].concat(), "a byte after a member"),
            (both[..both.len() - 1].to_vec(), "a cut checksum"),
            (both[..one.len() + 5].to_vec(), "a cut header"),
            (vec![], "nothing"),
            (vec![0; 100], "padding alone"),
        ] {
            assert!(unpack(&wrong).is_err(), "{what}");
        }
    }
}
