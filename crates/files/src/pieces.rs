//! A writer that hands over whole pieces at multiples of their size.

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of a piece: the size of a huge page. Linux's file systems with large folios (ext4 and XFS, of recent kernels) keep
/// what is written at once together in memory, and map it as such: a CPU then finds a file's weights by one entry of
/// its page tables for each piece instead of 512, and decodes by a tenth to a quarter faster.
const PIECE_BYTES: usize = 2 << 20;

/// A buffered writer of a large file. What is in the buffer when it is dropped is lost: [`Write::flush`] writes it.
pub struct PieceWriter<W> {
    to: W,
    /// Where the buffer's first byte belongs.
    at: u64,
    buffer: Vec<u8>,
}

impl<W: Write + Seek> PieceWriter<W> {
    /// Writes from the current position on.
    ///
    /// # Errors
    /// The position is not known.
    pub fn new(mut to: W) -> io::Result<PieceWriter<W>> {
        let at = to.stream_position()?;
        Ok(PieceWriter { to, at, buffer: Vec::with_capacity(PIECE_BYTES) })
    }

    /// What is written to; the buffer is not there yet.
    pub fn get_ref(&self) -> &W {
        &self.to
    }

    /// Bytes up to the end of the piece.
    fn room(&self) -> usize {
        PIECE_BYTES - (self.at % PIECE_BYTES as u64) as usize - self.buffer.len()
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        // Not written twice if it fails.
        let bytes = std::mem::take(&mut self.buffer);
        self.at += bytes.len() as u64;
        self.to.write_all(&bytes)?;
        self.buffer = bytes;
        self.buffer.clear();
        Ok(())
    }
}

impl<W: Write + Seek> Write for PieceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.room());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.room() == 0 {
            self.write_buffer()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_buffer()?;
        self.to.flush()
    }
}

impl<W: Write + Seek> Seek for PieceWriter<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.write_buffer()?;
        self.at = self.to.seek(to)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A file that counts what is written at once.
    struct Counted {
        file: Cursor<Vec<u8>>,
        writes: Vec<(u64, usize)>,
    }

    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes.push((self.file.position(), bytes.len()));
            self.file.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.file.seek(to)
        }
    }

    #[test]
    fn pieces_begin_at_multiples_of_their_size() -> io::Result<()> {
        const P: usize = PIECE_BYTES;
        let content: Vec<u8> = (0..3 * P + 5).map(|i| (i % 251) as u8).collect();
        let mut file = Cursor::new(Vec::new());
        file.write_all(&content[..7])?;
        let mut pieces = PieceWriter::new(Counted { file, writes: Vec::new() })?;
        for part in content[7..].chunks(100_003) {
            pieces.write_all(part)?;
        }
        assert_eq!(pieces.get_ref().writes, [(7, P - 7), (P as u64, P), (2 * P as u64, P)]);
        pieces.flush()?;
        // A hole up to the middle of a piece, and what is behind it.
        assert_eq!(pieces.seek(SeekFrom::Current(P as i64))?, (4 * P + 5) as u64);
        pieces.write_all(&content[..P])?;
        pieces.flush()?;
        let Counted { file, writes } = pieces.to;
        let behind = [(3 * P as u64, 5), (4 * P as u64 + 5, P - 5), (5 * P as u64, 5)];
        assert_eq!(writes[3..], behind);
        let file = file.into_inner();
        assert_eq!(file.len(), 5 * P + 5);
        assert!(file[..3 * P + 5] == content && file[4 * P + 5..] == content[..P]);
        Ok(())
    }
}
