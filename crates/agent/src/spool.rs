//! The agent's spool: batches on disk, in order, until the server has acknowledged them.
//!
//! A spool is one folder per stream with segments, each named after the sequence of its first record. A record is
//! `length, CRC-32, payload`, each number 32 bits little-endian; the payload is the batch without the instant of its
//! sending, and never changes. An append is durable when it returns. A record that a crash tore is cut off at the next
//! start: its append had not returned.
//!
//! `stream.json` beside the folders names the present stream and a lower bound of its next sequence; it is written
//! before a segment is removed, so that no sequence is used twice.
//!
//! When the spool is full, new batches are refused and those in it stay: the oldest were promised first. What is refused
//! is logged, and shows at the server as time that no reading covers.

use crate::state::{replace, sync_folder_of};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};
use types::{StreamId, wire::Reading};

/// A segment takes no further record beyond this size.
const SEGMENT_LIMIT: u64 = 1 << 20;
/// The largest record that is believed when a spool is read.
const MAX_RECORD: u32 = 16 << 20;
const HEADER: usize = 8;

/// Why the spool cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("the spool holds {held} of {limit} bytes and takes no more")]
    Full { held: u64, limit: u64 },
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the record of batch {0} is damaged")]
    Damaged(u64),
    #[error("the readings cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// A batch as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpooledBatch {
    pub stream_id: StreamId,
    pub sequence: u64,
    pub readings: Vec<Reading>,
}

#[derive(Serialize, Deserialize)]
struct Payload {
    sequence: u64,
    readings: Vec<Reading>,
}

#[derive(Serialize, Deserialize)]
struct Stream {
    stream_id: StreamId,
    next_sequence: u64,
}

/// Where a record stands.
#[derive(Debug, Clone)]
struct Entry {
    sequence: u64,
    /// The first sequence of its segment.
    segment: u64,
    offset: u64,
    length: u64,
}

/// The open spool. One process at a time.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    stream_id: StreamId,
    next_sequence: u64,
    entries: VecDeque<Entry>,
    limit: u64,
    /// The segment that takes the next record: its first sequence, its file, its length.
    open: Option<(u64, File, u64)>,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> SpoolError {
    let path = path.to_owned();
    |source| SpoolError::File { path, source }
}

impl Spool {
    /// Opens the spool in `folder`, made if it is not there, with the batches of an earlier run. `new_stream` names the
    /// stream where there is none yet. The spool takes at most `limit` bytes.
    ///
    /// # Errors
    /// [`SpoolError::File`] where the folder cannot be used.
    pub fn open(folder: &Path, new_stream: StreamId, limit: u64) -> Result<Self, SpoolError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let stream: Stream = fs::read(folder.join("stream.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or(Stream { stream_id: new_stream, next_sequence: 1 });
        let mut spool = Self {
            folder: folder.to_owned(),
            stream_id: stream.stream_id,
            next_sequence: stream.next_sequence,
            entries: VecDeque::new(),
            limit,
            open: None,
        };
        spool.begin_stream()?;
        spool.scan()?;
        Ok(spool)
    }

    /// Makes the present stream's folder, names the stream on disk, and removes the folders of former ones.
    fn begin_stream(&self) -> Result<(), SpoolError> {
        let folder = self.stream_folder();
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        sync_folder_of(&folder).map_err(at(&folder))?;
        self.save_stream()?;
        let listing = fs::read_dir(&self.folder).map_err(at(&self.folder))?;
        for former in listing.flatten().map(|entry| entry.path()) {
            if former.is_dir()
                && former != folder
                && let Err(error) = fs::remove_dir_all(&former)
            {
                // it no longer counts, and is removed at the next start
                tracing::warn!(%error, path = %former.display(), "a former stream cannot be removed");
            }
        }
        Ok(())
    }

    fn save_stream(&self) -> Result<(), SpoolError> {
        let stream = Stream { stream_id: self.stream_id, next_sequence: self.next_sequence };
        let path = self.folder.join("stream.json");
        replace(&path, &serde_json::to_vec(&stream)?).map_err(at(&path))
    }

    fn stream_folder(&self) -> PathBuf {
        self.folder.join(self.stream_id.to_string())
    }

    fn segment_path(&self, first: u64) -> PathBuf {
        self.stream_folder().join(format!("{first:020}.log"))
    }

    /// Finds the records of all segments, and cuts off what is torn or damaged.
    fn scan(&mut self) -> Result<(), SpoolError> {
        let folder = self.stream_folder();
        let mut segments: Vec<u64> = fs::read_dir(&folder)
            .map_err(at(&folder))?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(".log")?.parse().ok()
            })
            .collect();
        segments.sort_unstable();
        for first in segments {
            let path = self.segment_path(first);
            let bytes = fs::read(&path).map_err(at(&path))?;
            let mut offset = 0;
            while let Some(payload) = record_at(&bytes, offset) {
                let Ok(Payload { sequence, .. }) = serde_json::from_slice(payload) else {
                    break;
                };
                let length = (HEADER + payload.len()) as u64;
                self.entries.push_back(Entry { sequence, segment: first, offset: offset as u64, length });
                self.next_sequence = self.next_sequence.max(sequence + 1);
                offset += HEADER + payload.len();
            }
            if offset < bytes.len() {
                tracing::warn!(path = %path.display(), from = offset, "a torn record is cut off");
                let file = OpenOptions::new().write(true).open(&path).map_err(at(&path))?;
                file.set_len(offset as u64).map_err(at(&path))?;
                file.sync_all().map_err(at(&path))?;
            }
            if offset == 0 {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    /// Whether every batch is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sequence of the newest batch of this stream; 0 before the first.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.next_sequence - 1
    }

    /// The stream that batches go to.
    #[must_use]
    pub const fn stream_id(&self) -> StreamId {
        self.stream_id
    }

    fn held(&self) -> u64 {
        self.entries.iter().map(|entry| entry.length).sum()
    }

    /// Keeps a batch and returns its sequence. It is durable when this returns.
    ///
    /// # Errors
    /// [`SpoolError::Full`], or [`SpoolError::File`] where the disk does not take it; then nothing was kept.
    pub fn append(&mut self, readings: &[Reading]) -> Result<u64, SpoolError> {
        let sequence = self.next_sequence;
        let payload = serde_json::to_vec(&Payload { sequence, readings: readings.to_vec() })?;
        let held = self.held();
        if held + (HEADER + payload.len()) as u64 > self.limit {
            return Err(SpoolError::Full { held, limit: self.limit });
        }
        let (segment, mut file, offset) = match self.open.take() {
            Some(open) if open.2 < SEGMENT_LIMIT => open,
            _ => self.new_segment(sequence)?,
        };
        let record = record_of(&payload);
        let path = self.segment_path(segment);
        // on failure the segment stays closed, and what may have been written of the record is cut off
        file.write_all(&record)
            .and_then(|()| file.sync_data())
            .inspect_err(|_| drop(file.set_len(offset)))
            .map_err(at(&path))?;
        let length = record.len() as u64;
        self.open = Some((segment, file, offset + length));
        self.entries.push_back(Entry { sequence, segment, offset, length });
        self.next_sequence += 1;
        Ok(sequence)
    }

    fn new_segment(&self, first: u64) -> Result<(u64, File, u64), SpoolError> {
        let path = self.segment_path(first);
        // a segment of this name can only be what a failed append left
        let file = File::create(&path).map_err(at(&path))?;
        sync_folder_of(&path).map_err(at(&path))?;
        Ok((first, file, 0))
    }

    /// The oldest batch that is not acknowledged.
    ///
    /// # Errors
    /// [`SpoolError::Damaged`] where its record can no longer be read.
    pub fn front(&self) -> Result<Option<SpooledBatch>, SpoolError> {
        self.entries.front().map(|entry| self.read(entry)).transpose()
    }

    fn read(&self, entry: &Entry) -> Result<SpooledBatch, SpoolError> {
        let path = self.segment_path(entry.segment);
        let mut bytes = vec![0; usize::try_from(entry.length).unwrap_or(0)];
        let mut file = File::open(&path).map_err(at(&path))?;
        file.seek(SeekFrom::Start(entry.offset)).and_then(|_| file.read_exact(&mut bytes)).map_err(at(&path))?;
        let payload: Payload = record_at(&bytes, 0)
            .and_then(|payload| serde_json::from_slice(payload).ok())
            .ok_or(SpoolError::Damaged(entry.sequence))?;
        Ok(SpooledBatch { stream_id: self.stream_id, sequence: entry.sequence, readings: payload.readings })
    }

    /// Forgets the batches up to and with `sequence`: the server holds them. Segments that hold nothing else go.
    ///
    /// # Errors
    /// [`SpoolError::File`]; what then stays on disk is offered again after a restart, and the server knows it.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<(), SpoolError> {
        let mut done: Vec<u64> = Vec::new();
        while let Some(entry) = self.entries.front()
            && entry.sequence <= sequence
        {
            done.push(entry.segment);
            self.entries.pop_front();
        }
        done.dedup();
        done.retain(|segment| self.entries.front().is_none_or(|e| e.segment != *segment));
        if done.is_empty() {
            return Ok(());
        }
        self.save_stream()?;
        for segment in done {
            if self.open.as_ref().is_some_and(|open| open.0 == segment) {
                self.open = None;
            }
            let path = self.segment_path(segment);
            fs::remove_file(&path).map_err(at(&path))?;
        }
        Ok(())
    }

    /// Begins a new stream and moves the batches to it, numbered from 1; with `without_front`, all but the oldest. For
    /// when the server cannot follow the present stream: it has accepted nothing of it from the oldest batch on.
    ///
    /// # Errors
    /// [`SpoolError::File`]; then the present stream goes on.
    pub fn restart_stream(&mut self, stream_id: StreamId, without_front: bool) -> Result<(), SpoolError> {
        let mut next = Self {
            folder: self.folder.clone(),
            stream_id,
            next_sequence: 1,
            entries: VecDeque::new(),
            limit: u64::MAX,
            open: None,
        };
        let folder = next.stream_folder();
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        for entry in self.entries.iter().skip(usize::from(without_front)) {
            match self.read(entry) {
                Ok(batch) => {
                    next.append(&batch.readings)?;
                }
                Err(error @ SpoolError::Damaged(_)) => {
                    tracing::error!(%error, "readings are lost: their windows stay uncovered");
                }
                Err(error) => return Err(error),
            }
        }
        // from here on the new stream is the one that counts, even after a crash
        next.begin_stream()?;
        next.limit = self.limit;
        *self = next;
        Ok(())
    }
}

fn record_of(payload: &[u8]) -> Vec<u8> {
    // a payload holds one batch, far below 4 GiB
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut record = Vec::with_capacity(HEADER + payload.len());
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// The payload of the record at `offset`, if a whole and sound one stands there.
fn record_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let word = |from: usize| -> Option<u32> {
        let bytes = bytes.get(from..from + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (length, crc) = (word(offset)?, word(offset + 4)?);
    if length > MAX_RECORD {
        return None;
    }
    let start = offset + HEADER;
    let payload = bytes.get(start..start + usize::try_from(length).ok()?)?;
    (crc32fast::hash(payload) == crc).then_some(payload)
}

#[cfg(test)]
mod tests;
