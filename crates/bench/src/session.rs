//! One rank of a running job: its device, its peers, and collective steps.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use warpweave_comm::Store;
use warpweave_comm::exchange::LocalExchange;
use warpweave_overlap::execute::Executor;
use warpweave_symm_mem::{Exchange, ExchangeError, Memory, Nodes, Priority, SubExchange};

use crate::error::{BenchError, Result};
use crate::inject::Injection;

pub use warpweave_overlap::execute::ExecuteBackend;

/// This rank, its device and its peers.
pub struct Session<B: ExecuteBackend> {
    /// The device.
    pub backend: B,
    /// The peers.
    pub exchange: Arc<dyn Exchange>,
    /// The peers with whom this rank shares memory.
    pub node: Arc<dyn Exchange>,
    /// The nodes of the job.
    pub nodes: Nodes,
    /// Binds plans.
    pub executor: Executor<B>,
    /// The stream on which everything is timed.
    pub stream: B::Stream,
    /// The fault that this run is to suffer.
    pub injection: Injection,
    threads: usize,
    store: Arc<Store>,
    local: Arc<LocalExchange>,
}

impl<B: ExecuteBackend> Session<B> {
    /// With `backend` as this rank's device, in the job whose `store` this rank has joined. Collective.
    ///
    /// # Errors
    /// A rank did not come; the device has no stream.
    pub fn new(store: Store, backend: B, injection: Injection) -> Result<Self> {
        let store = Arc::new(store);
        let local = Arc::new(LocalExchange::new(store.clone(), "bench"));
        let exchange: Arc<dyn Exchange> = local.clone();
        let nodes = exchange.nodes()?;
        let near = nodes.ranks_of(nodes.node_of(exchange.rank()));
        let node = SubExchange::new(exchange.clone(), near)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            threads: (cores / node.world().max(1)).max(1),
            node: Arc::new(node),
            nodes,
            executor: Executor::new(&backend, &exchange)?,
            stream: backend.stream(Priority::Normal)?,
            backend,
            exchange,
            injection,
            store,
            local,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.exchange.world()
    }

    /// The name of this rank's device, without its number.
    pub fn device_name(&self) -> &str {
        let mut parts = self.backend.device().name.split(" (device");
        parts.next().unwrap_or_default()
    }

    /// The other ranks of this rank's node, as the node numbers them.
    pub fn peers(&self) -> Vec<usize> {
        (0..self.node.world())
            .filter(|&rank| rank != self.node.rank())
            .collect()
    }

    /// This rank's share of the machine's cores.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// To be called before each call that is timed or verified: injects the fault of a test.
    pub fn before_call(&self) -> Result<()> {
        if let Some(delay) = self.injection.delay() {
            self.backend.delay(&self.stream, delay)?;
        }
        self.injection.before_call()
    }

    /// Ends a collective step: returns the values of all ranks, or an error on every rank if the step failed
    /// on any. The error names the ranks that failed and those that did not arrive.
    ///
    /// # Errors
    /// [`BenchError::Step`] if `mine` is an error, [`BenchError::Peers`] if another rank's is; both with all
    /// that is known.
    pub fn agree<T>(&self, step: &str, mine: Result<T>) -> Result<Vec<T>>
    where
        T: Clone + Serialize + DeserializeOwned,
    {
        self.attempt(step, mine)?
    }

    /// As [`Session::agree`] of a step that may fail: if all ranks have arrived, a failure on some of them is
    /// the inner error, and the ranks can go on.
    ///
    /// # Errors
    /// A rank did not arrive.
    pub fn attempt<T>(&self, step: &str, mine: Result<T>) -> Result<Result<Vec<T>>>
    where
        T: Clone + Serialize + DeserializeOwned,
    {
        let all = self.exchanged(step, mine, T::clone)?;
        Ok(all.map(|(_, values)| values))
    }

    /// As [`Session::agree`] of something that each rank makes; returns this rank's.
    pub fn on_all<T>(&self, step: &str, mine: Result<T>) -> Result<T> {
        Ok(self.exchanged(step, mine, |_| ())??.0)
    }

    /// The same where a rank may be unable to make it: the inner error is the first such rank's reason.
    pub fn if_all_can<T>(
        &self,
        step: &str,
        mine: Result<Result<T, String>>,
    ) -> Result<Result<T, String>> {
        let (mine, reasons) = self.exchanged(step, mine, |mine| mine.as_ref().err().cloned())??;
        Ok(reasons.into_iter().flatten().next().map_or(mine, Err))
    }

    /// The value of this rank, and what all ranks sent of theirs. Errors are as of [`Session::attempt`].
    fn exchanged<T, U: Serialize + DeserializeOwned>(
        &self,
        step: &str,
        mine: Result<T>,
        sent: impl FnOnce(&T) -> U,
    ) -> Result<Result<(T, Vec<U>)>> {
        let word = mine.as_ref().map(sent).map_err(BenchError::to_string);
        let word = serde_json::to_vec(&word).map_err(std::io::Error::from)?;
        let gathered = match &mine {
            // Another rank has had a whole deadline already. If it lives, it comes soon: its own waits fail
            // too.
            Err(error) if error.blames_a_peer() => {
                let soon = self.backend.timeout() / 4;
                self.local.all_gather_within(step, &word, soon)
            }
            _ => self.exchange.all_gather(step, &word),
        };
        let all_came = gathered.is_ok();
        let (mut peers, mut values) = (Vec::new(), Vec::new());
        match gathered {
            Ok(all) => {
                for (rank, word) in all.into_iter().enumerate() {
                    let said: Result<Result<U, String>, _> = serde_json::from_slice(&word);
                    match said.unwrap_or_else(|unreadable| Err(unreadable.to_string())) {
                        Ok(value) => values.push(value),
                        Err(cause) if mine.is_ok() || rank != self.rank() => {
                            peers.push(format!("rank {rank}: {cause}"));
                        }
                        Err(_) => {}
                    }
                }
            }
            Err(error) => peers.push(verdict(&error)),
        }
        let step = step.to_owned();
        let error = match mine {
            Ok(mine) if peers.is_empty() => return Ok(Ok((mine, values))),
            Ok(_) => BenchError::Peers { step, peers },
            Err(cause) => BenchError::Step {
                step,
                cause: Box::new(cause),
                peers,
            },
        };
        if all_came { Ok(Err(error)) } else { Err(error) }
    }

    /// Local memory that holds `bytes`, uploaded on the session's stream.
    pub fn upload(&self, bytes: &[u8]) -> Result<B::Memory> {
        let memory = self.backend.allocate(bytes.len())?;
        // SAFETY: the memory was just allocated with this length and nothing else knows it.
        unsafe { self.backend.upload(&self.stream, memory.address(), bytes)? };
        Ok(memory)
    }

    /// Tells the other ranks why this one gives up, so that none waits for it. Rank 0 then closes the store,
    /// for the process may end without dropping it.
    pub fn abandon(&self, error: &BenchError) {
        // The store may be what failed; then the others know already.
        let _ = self.store.abort(&error.to_string());
        self.store.close();
    }
}

/// What a failed exchange says about the other ranks.
fn verdict(error: &ExchangeError) -> String {
    match error {
        ExchangeError::Timeout {
            waiting_for, after, ..
        } => format!("no word from ranks {waiting_for:?} within {after:.1?}: dead or stalled"),
        other => other.to_string(),
    }
}
