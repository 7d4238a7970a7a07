//! The timelines among the examples are right.

use std::fs;
use std::path::Path;

use tidegate::simulation::check;

#[test]
fn the_timelines_of_the_examples_are_answered_as_they_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/otp");
    let mut checked = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "timeline")
        {
            let text = fs::read_to_string(&path).unwrap();
            if let Err(error) = check(&path.to_string_lossy(), &text) {
                panic!("{error}");
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 2);
}
