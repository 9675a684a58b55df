//! A launch of a prepared GEMM, and what launches have encoded, by their operands.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

use parking_lot::Mutex;

/// A valid GEMM with the operands of a launch.
#[derive(Debug)]
pub(crate) struct Launch<'a, G, O> {
    pub gemm: &'a G,
    pub operands: &'a O,
}

impl<G, O> Clone for Launch<'_, G, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G, O> Copy for Launch<'_, G, O> {}

impl<G, O> Deref for Launch<'_, G, O> {
    type Target = G;

    fn deref(&self) -> &G {
        self.gemm
    }
}

/// Most launches that a prepared GEMM keeps, each with operands of its own: a parameter has at most 6 KiB.
pub(crate) const MOST_LAUNCHES: usize = 256;

/// The parameters of launches by their operands: at most `MOST`, of which the one that was not used for the
/// longest time gives way to a new one.
#[derive(Debug)]
pub(crate) struct Launches<K, V, const MOST: usize = MOST_LAUNCHES> {
    state: Mutex<State<K, V>>,
}

#[derive(Debug)]
struct State<K, V> {
    /// With the time of the last use.
    encoded: HashMap<K, (u64, V)>,
    /// Counts uses.
    now: u64,
}

impl<K, V, const MOST: usize> Default for Launches<K, V, MOST> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                encoded: HashMap::new(),
                now: 0,
            }),
        }
    }
}

impl<K: Hash + Eq + Clone, V, const MOST: usize> Launches<K, V, MOST> {
    /// Lets `launch` use the parameter for `key`, which `encode` makes if it is not here. Other threads wait
    /// meanwhile.
    ///
    /// # Errors
    /// Those of `encode` and of `launch`.
    pub fn with<T, E>(
        &self,
        key: &K,
        encode: impl FnOnce() -> Result<V, E>,
        launch: impl FnOnce(&mut V) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.state.lock();
        let State { encoded, now } = &mut *state;
        *now += 1;
        if let Some((used, parameter)) = encoded.get_mut(key) {
            *used = *now;
            return launch(parameter);
        }
        let parameter = encode()?;
        if encoded.len() >= MOST {
            let oldest = encoded.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                encoded.remove(&oldest);
            }
        }
        let (_, parameter) = encoded.entry(key.clone()).or_insert((*now, parameter));
        launch(parameter)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.state.lock().encoded.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Never = std::convert::Infallible;

    #[test]
    fn what_was_encoded_is_encoded_once_while_it_is_kept() {
        let launches = Launches::<u32, u32, 4>::default();
        let mut encoded = Vec::new();
        let mut launch = |key| {
            let encode = || {
                encoded.push(key);
                Ok::<_, Never>(10 * key)
            };
            let Ok(got) = launches.with(&key, encode, |parameter| Ok(*parameter));
            assert_eq!(got, 10 * key);
        };
        // The fifth takes the place of the second, since the first was used again.
        for key in [1, 2, 3, 4, 1, 5, 1, 3, 4, 5, 2] {
            launch(key);
        }
        assert_eq!(encoded, [1, 2, 3, 4, 5, 2]);
        assert_eq!(launches.len(), 4);
    }

    #[test]
    fn what_could_not_be_encoded_is_not_kept() {
        let launches = Launches::<u32, u32, 4>::default();
        let refused = launches.with(&1, || Err("refused"), |_| Ok(()));
        assert_eq!((refused, launches.len()), (Err("refused"), 0));
    }
}
