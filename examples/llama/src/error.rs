//! What can go wrong.

use std::path::PathBuf;

use warpweave_comm::CommError;
use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::layers::LayerError;

/// Result of this package.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written, or is not what its name promises.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A tensor of a checkpoint is missing, cut off, of another type or shape, or does not divide.
    #[error("tensor `{name}`: {why}")]
    Tensor {
        /// The tensor, as the checkpoint names it.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A model of a kind that this program does not know.
    #[error("config.json: {0}")]
    Config(String),
    /// A request that cannot be served.
    #[error("request {request}: {why}")]
    Request {
        /// Its place in the batch.
        request: usize,
        /// What is wrong.
        why: String,
    },
    /// The tokenizer.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// What candle reports; an operation of Warpweave's in it, too.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// What a layer reports.
    #[error(transparent)]
    Layer(Box<LayerError>),
    /// What the executor of the layers reports.
    #[error(transparent)]
    Execute(Box<ExecuteError>),
    /// What the collectives report.
    #[error(transparent)]
    Memory(Box<warpweave_symm_mem::Error>),
    /// What the job reports: a lost rank, by its number.
    #[error(transparent)]
    Comm(Box<CommError>),
    /// A rank ended otherwise than by doing its work.
    #[error("rank {rank} of {world} {end}")]
    RankFailed {
        /// The first that did.
        rank: usize,
        /// Number of ranks.
        world: usize,
        /// How it ended.
        end: String,
    },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted; all ranks have ended")]
    Interrupted,
    /// Two runs that must agree do not.
    #[error("{0}")]
    Differs(String),
}

/// Large errors are boxed.
macro_rules! boxed {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Error {
            fn from(error: $from) -> Self {
                Error::$variant(Box::new(error))
            }
        }
    )*};
}
boxed! {
    LayerError => Layer,
    ExecuteError => Execute,
    warpweave_symm_mem::Error => Memory,
    CommError => Comm,
}

impl Error {
    /// Whether another rank's loss or failure is what this tells of.
    pub fn is_of_peer(&self) -> bool {
        let Error::Comm(error) = self else {
            return false;
        };
        matches!(
            **error,
            CommError::PeerLost { .. } | CommError::PeerFailed { .. }
        )
    }

    /// For `map_err`: an error of `path`.
    pub fn file<E: std::fmt::Display>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |why| Error::File {
            path,
            why: why.to_string(),
        }
    }

    /// An error of the tensor `name`.
    pub fn tensor(name: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Tensor {
            name: name.into(),
            why: why.into(),
        }
    }
}
