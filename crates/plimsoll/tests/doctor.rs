//! `plimsoll doctor` on the machine of the tests, which can serve.

mod process;

use process::{directory, fails, succeeds};

#[test]
fn every_check_says_a_line() {
    let place = directory("doctor");
    let data = place.join("not-there-yet");
    let text = succeeds(&["doctor", "--data", data.to_str().unwrap()]);
    let lines: Vec<&str> = text.lines().collect();
    let names = [
        "io_uring",
        "descriptors",
        "locked memory",
        "direct I/O",
        "write cache",
        "scheduler",
        "cores",
        "clock",
    ];
    assert_eq!(lines.len(), names.len(), "{text}");
    for (line, name) in lines.iter().zip(names) {
        let (state, rest) = line.split_at(7);
        assert!(["good", "worse"].contains(&state.trim()) && rest.starts_with(name), "{line}");
        assert_eq!(state.trim() == "worse", line.contains("; "), "what is worse has a mend: {line}");
    }
    assert_eq!(std::fs::read_dir(&*place).unwrap().count(), 0, "nothing is left behind");
    let text = fails(&["doctor", "--data", "/proc/nothing"]);
    assert!(text.contains("BAD    direct I/O") && text.contains("cannot run here"), "{text}");
    // What serve would warn of, or fail on.
    let (file, link) = (place.join("file"), place.join("link"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    for (data, said) in [(file.join("below"), "not a directory"), (link, "a link to what is not there")] {
        let text = fails(&["doctor", "--data", data.to_str().unwrap()]);
        assert!(text.contains("BAD    direct I/O") && text.contains(said), "{text}");
    }
}
