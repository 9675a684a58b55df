//! A checkpoint's tensors, of which a rank reads only its own part from the disk.

pub mod random;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The index of a checkpoint of several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// The longest header that safetensors allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// The index: which tensor is in which file.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Index {
    /// File names by tensor.
    pub weight_map: BTreeMap<String, String>,
}

/// The open files of a checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// Which of `shards` has a tensor.
    places: HashMap<String, usize>,
    dtype: DType,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    /// Bytes before the first tensor's data.
    start: u64,
    length: u64,
    header: Metadata,
}

/// What a rank takes of a matrix.
#[derive(Clone, Debug)]
pub enum Part {
    /// Everything.
    All,
    /// These rows: a column-parallel weight, whose rows are output features.
    Rows(Range<usize>),
    /// These columns: a row-parallel weight.
    Columns(Range<usize>),
}

impl Checkpoint {
    /// Opens the safetensors of `folder`, one file or several with an index. All tensors are of `dtype`.
    ///
    /// # Errors
    /// A file is missing or has no valid header.
    pub fn open(folder: &Path, dtype: DType) -> Result<Self> {
        let single = folder.join("model.safetensors");
        let (mut shards, mut places) = (Vec::new(), HashMap::new());
        if single.exists() {
            let shard = Shard::open(single)?;
            places.extend(shard.header.tensors().into_keys().map(|name| (name, 0)));
            shards.push(shard);
        } else {
            let path = folder.join(INDEX);
            let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
            let index: Index = serde_json::from_str(&text).map_err(Error::file(&path))?;
            let mut opened = HashMap::new();
            for (tensor, file) in index.weight_map {
                let place = match opened.get(&file) {
                    Some(place) => *place,
                    None => {
                        shards.push(Shard::open(folder.join(&file))?);
                        opened.insert(file, shards.len() - 1);
                        shards.len() - 1
                    }
                };
                places.insert(tensor, place);
            }
        }
        Ok(Checkpoint {
            folder: folder.to_owned(),
            shards,
            places,
            dtype,
        })
    }

    /// Whether it has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The names of its tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Reads `part` of the tensor `name`, which has this `shape`, to `device`.
    ///
    /// # Errors
    /// The tensor is missing, cut off, or of another shape or type: all by its name.
    pub fn read(
        &self,
        name: &str,
        shape: &[usize],
        part: &Part,
        device: &Device,
    ) -> Result<Tensor> {
        let missing = || {
            Error::tensor(
                name,
                format!("not in the checkpoint {}", self.folder.display()),
            )
        };
        let shard = &self.shards[*self.places.get(name).ok_or_else(missing)?];
        let info = shard.header.info(name).ok_or_else(|| {
            Error::tensor(
                name,
                format!(
                    "the index says that {} has it, which does not",
                    shard.path.display()
                ),
            )
        })?;
        let dtype = DType::try_from(info.dtype)
            .ok()
            .filter(|dtype| *dtype == self.dtype);
        let Some(dtype) = dtype else {
            let why = format!(
                "is of {:?}, and the checkpoint of {:?}",
                info.dtype, self.dtype
            );
            return Err(Error::tensor(name, why));
        };
        if info.shape != shape {
            return Err(Error::tensor(
                name,
                format!("is {:?} and should be {shape:?}", info.shape),
            ));
        }
        let (bytes, shape) = shard.read(name, info, part, dtype.size_in_bytes())?;
        Ok(Tensor::from_raw_buffer(&bytes, dtype, &shape, device)?)
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).map_err(Error::file(&path))?;
        let length = file.metadata().map_err(Error::file(&path))?.len();
        let mut size = [0; 8];
        file.read_exact_at(&mut size, 0)
            .map_err(Error::file(&path))?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER.min(length) {
            return Err(Error::file(&path)(format!(
                "a header of {size} bytes in a file of {length}"
            )));
        }
        let mut header = vec![0; size as usize];
        file.read_exact_at(&mut header, 8)
            .map_err(Error::file(&path))?;
        let header = serde_json::from_slice(&header).map_err(Error::file(&path))?;
        Ok(Shard {
            path,
            file,
            start: 8 + size,
            length,
            header,
        })
    }

    /// The bytes of a part, and its shape.
    fn read(
        &self,
        name: &str,
        info: &TensorInfo,
        part: &Part,
        size: usize,
    ) -> Result<(Vec<u8>, Vec<usize>)> {
        let (begin, end) = (
            self.start + info.data_offsets.0 as u64,
            self.start + info.data_offsets.1 as u64,
        );
        let expected = info.shape.iter().product::<usize>() * size;
        if end.saturating_sub(begin) != expected as u64 {
            return Err(Error::tensor(
                name,
                format!("has {} bytes, not {expected}", end - begin),
            ));
        }
        if end > self.length {
            let (path, length) = (self.path.display(), self.length);
            return Err(Error::tensor(
                name,
                format!("ends at byte {end} of {path}, which has {length}: truncated"),
            ));
        }
        let mut shape = info.shape.clone();
        let row = shape.iter().skip(1).product::<usize>() * size;
        let mut bytes = Vec::new();
        let mut take = |from: usize, count: usize| {
            let filled = bytes.len();
            bytes.resize(filled + count, 0);
            let read = self
                .file
                .read_exact_at(&mut bytes[filled..], begin + from as u64);
            read.map_err(|why| Error::tensor(name, why.to_string()))
        };
        match part {
            Part::All => take(0, expected)?,
            Part::Rows(rows) => {
                shape[0] = rows.len();
                take(rows.start * row, rows.len() * row)?;
            }
            Part::Columns(columns) => {
                shape[1] = columns.len();
                for index in 0..shape[0] {
                    take(index * row + columns.start * size, columns.len() * size)?;
                }
            }
        }
        Ok((bytes, shape))
    }
}
