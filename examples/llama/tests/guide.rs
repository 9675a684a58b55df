//! The code of docs/guides/cudarc-and-candle.md that needs candle is code of this package, which CI compiles.

use std::fs;
use std::path::Path;

/// What precedes a block, with the file that has its lines.
const MARK: &str = "<!-- examples/llama/";

/// Lines without indentation and blank ones.
fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn the_guide_has_the_code_of_this_package() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(package.join("../../docs/guides/cudarc-and-candle.md")).unwrap();
    let mut blocks = 0;
    for after in guide.split(MARK).skip(1) {
        let (file, rest) = after
            .split_once(" -->\n```rust,ignore\n")
            .expect("a block follows the mark");
        let (block, _) = rest.split_once("```\n").unwrap();
        let source = fs::read_to_string(package.join(file)).unwrap();
        let (source, block) = (lines(&source), lines(block));
        let is_there = source.windows(block.len()).any(|window| window == block);
        assert!(
            is_there,
            "{file} has no longer what the guide shows:\n{}",
            block.join("\n")
        );
        blocks += 1;
    }
    assert_eq!(
        blocks,
        guide.matches("```rust,ignore").count(),
        "every block that is not compiled has a mark"
    );
    assert!(blocks >= 3);
}
