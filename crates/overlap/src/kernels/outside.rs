//! Kernels of projects outside: how a plan holds them, and how they are read from a file.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Kernel;

/// A kernel that this crate does not know. Two are equal if their names and parameters are.
#[derive(Clone)]
pub struct Outside {
    kernel: Arc<dyn Kernel>,
    /// The kernel as JSON.
    parameters: Value,
}

type Read = fn(Value) -> serde_json::Result<Outside>;

/// What reads the parameters of each registered kernel.
static REGISTERED: RwLock<BTreeMap<String, Read>> = RwLock::new(BTreeMap::new());

/// Registers a kernel, so that plans with it can be read from JSON. A later registration of the same name
/// replaces it.
pub fn register<K>(name: &str)
where
    K: Kernel + Serialize + for<'de> Deserialize<'de> + 'static,
{
    let read: Read = |parameters| Outside::new(K::deserialize(parameters)?);
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.into(), read);
}

impl Outside {
    pub(super) fn new<K>(kernel: K) -> serde_json::Result<Self>
    where
        K: Kernel + Serialize + for<'de> Deserialize<'de> + 'static,
    {
        register::<K>(kernel.name());
        Ok(Self {
            parameters: serde_json::to_value(&kernel)?,
            kernel: Arc::new(kernel),
        })
    }

    pub(super) fn kernel(&self) -> &(dyn Kernel + 'static) {
        self.kernel.as_ref()
    }
}

/// An [`Outside`] in a plan's JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    name: String,
    parameters: Value,
}

impl Serialize for Outside {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            name: self.kernel.name().into(),
            parameters: self.parameters.clone(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Outside {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { name, parameters } = Written::deserialize(deserializer)?;
        // Not held while the parameters are read, which registers them again.
        let read = {
            let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
            registered.get(&name).copied()
        };
        let read = read.ok_or_else(|| {
            let what = "no kernel of this name is registered in this process";
            D::Error::custom(format!(
                "{what}: `{name}`; its project calls `warpweave_overlap::kernels::register`"
            ))
        })?;
        read(parameters).map_err(|error| D::Error::custom(format!("kernel `{name}`: {error}")))
    }
}

impl PartialEq for Outside {
    fn eq(&self, other: &Self) -> bool {
        (self.kernel.name(), &self.parameters) == (other.kernel.name(), &other.parameters)
    }
}

impl Eq for Outside {}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernel.fmt(f)
    }
}
