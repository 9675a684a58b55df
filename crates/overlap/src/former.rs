//! Names of the release before this one. They are still read, with a note in the log.

/// What an algorithm, an operation or a parameter was called, and what it is called now.
const FORMER: [(&str, &str); 6] = [
    ("besideInSequence", "sequentialAllGather"),
    ("besideOverlapped", "overlappedAllGather"),
    ("besideCopyEngine", "copyEngineAllGather"),
    ("matmul-beside-all-gather", "matmul-overlapping-all-gather"),
    ("fetched", "pulled"),
    ("product", "gemms"),
];

/// The name that stands for `name` today.
pub(crate) fn current(name: &str) -> &str {
    match FORMER.iter().find(|(former, _)| *former == name) {
        Some((former, current)) => {
            tracing::warn!(
                "`{former}` is now called `{current}`; the next release will not read the former name"
            );
            current
        }
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithms::find;
    use crate::operation::Operation;

    #[test]
    fn former_names_are_read() {
        for (former, current) in [
            (
                "besideInSequence:transport=symmetric",
                "sequentialAllGather:transport=symmetric",
            ),
            ("besideOverlapped", "overlappedAllGather"),
            ("besideCopyEngine", "copyEngineAllGather"),
            ("fusedAllGather:fetched=3", "fusedAllGather:pulled=3"),
            (
                "columnParallelLinear:product=batched",
                "columnParallelLinear:gemms=batched",
            ),
        ] {
            assert_eq!(find(former).unwrap().name(), current);
            assert_eq!(find(current).unwrap().name(), current);
        }
        let operation: Operation = "matmul-beside-all-gather".parse().unwrap();
        assert_eq!(operation, Operation::MatmulOverlappingAllGather);
    }
}
