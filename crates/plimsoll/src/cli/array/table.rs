//! An array as a table for people.

use serde_json::Value;

/// Letters of a full bar.
const BAR: usize = 20;

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// How far a member, or a scrub, is: a bar, a share, and how long it will take.
pub(super) fn progress(told: &Value) -> String {
    let Some(part) = told["progress"].as_f64() else { return String::new() };
    let full = (part * BAR as f64) as usize;
    let bar = "#".repeat(full) + &".".repeat(BAR - full.min(BAR));
    let left = told["seconds_left"].as_u64().map(|seconds| format!(" {} left", duration(seconds)));
    format!("[{bar}] {:.0} %{}", part * 100.0, left.unwrap_or_default())
}

/// What a scrub under way has been through, and how far that is.
pub(super) fn scrubbed(scrub: &Value) -> String {
    let (keys, errors) = (number(&scrub["keys"]), number(&scrub["errors"]));
    let total = scrub["keys_total"].as_u64().filter(|total| *total > 0);
    let of = total.map_or(String::new(), |total| format!(" of {total}"));
    format!("{keys}{of} keys, {errors} errors {}", progress(scrub)).trim_end().to_owned()
}

/// A time in two of its units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Bytes in a unit that people read, with a digit behind the point.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let unit = (count.ilog2() as usize / 10).min(UNITS.len());
    format!("{:.1} {}", count as f64 / 1024_f64.powi(unit as i32), UNITS[unit - 1])
}

/// The table of `plimsoll array status`.
pub(super) fn table(array: &Value) -> String {
    let members = array["members"].as_array().cloned().unwrap_or_default();
    let head = ["#", "device", "state", "copied", "repaired", "failed", "why"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(members.iter().map(row));
    let mut out = format!(
        "{} over {} devices, {} partitions; {} keys unsettled\n",
        text(&array["mechanism"]),
        members.len(),
        number(&array["partitions"]),
        number(&array["unsettled"])
    );
    let (waiting, loose) = (number(&array["packing_waiting"]), number(&array["sets_loose"]));
    if waiting + loose > 0 {
        out += &format!("packing: {waiting} keys wait, {loose} sets to look through\n");
    }
    out += &picks(array);
    let scrub = &array["scrub"];
    let (keys, errors) = (number(&scrub["keys"]), number(&scrub["errors"]));
    if scrub["running"] == Value::Bool(true) {
        out += &format!("scrub under way: {}\n", scrubbed(scrub));
    } else if keys > 0 {
        out += &format!("last scrub: {keys} keys, {errors} errors\n");
    }
    out + &laid_out(&rows)
}

/// What values of each length get, if that is chosen.
fn picks(array: &Value) -> String {
    let picks = array["picks"].as_array().cloned().unwrap_or_default();
    let mut lines: Vec<String> = picks.iter().map(pick).collect();
    if number(&array["keys_moved"]) > 0 {
        lines.push(format!("{} keys were moved to what their length gets\n", number(&array["keys_moved"])));
    }
    lines.concat()
}

fn pick(pick: &Value) -> String {
    let length = match pick["value_bytes_max"].as_u64() {
        Some(most) => format!("to {}", bytes(most)),
        None => "longer".to_owned(),
    };
    let choices = pick["choices"].as_array().cloned().unwrap_or_default();
    let choices: Vec<String> = choices
        .iter()
        .map(|choice| {
            let space = number(&choice["space_percent"]);
            let device_us = number(&choice["device_ns"]) as f64 / 1000.0;
            format!("{} {space} % and {device_us:.1} us", text(&choice["mechanism"]))
        })
        .collect();
    let [stores, updates, retrieves, deletes] =
        ["stores", "updates", "retrieves", "deletes"].map(|what| number(&pick[format!("{what}_percent")]));
    format!(
        "{length}: {} in {} of {} partitions; of 100 operations {stores} stores, {updates} overwrites, \
         {retrieves} reads, {deletes} deletes: {}\n",
        text(&pick["mechanism"]),
        number(&pick["partitions"]),
        number(&pick["partitions_asked"]),
        choices.join(", ")
    )
}

fn row(member: &Value) -> [String; 7] {
    let (bar, reason) = (progress(member), text(&member["reason"]));
    let why = [bar.as_str(), reason].iter().filter(|words| !words.is_empty()).copied().collect::<Vec<_>>();
    [
        number(&member["index"]).to_string(),
        text(&member["device"]).to_owned(),
        text(&member["state"]).to_owned(),
        bytes(number(&member["copied_bytes"])),
        number(&member["repaired"]).to_string(),
        number(&member["failed_requests"]).to_string(),
        why.join(" "),
    ]
}

/// Columns as wide as their widest cell.
fn laid_out(rows: &[[String; 7]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; 7]| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_stand_below_each_other() {
        let member = |index: u64, state: &str, reason: &str, progress: Value| {
            json!({
                "index": index, "device": format!("/d/{index}"), "state": state, "reason": reason,
                "progress": progress, "seconds_left": 75, "copied_bytes": 1 << 20, "repaired": 2,
                "failed_requests": 3,
            })
        };
        let array = json!({
            "mechanism": "replication 2", "partitions": 4, "unsettled": 1,
            "scrub": { "running": false, "keys": 9, "errors": 0 },
            "members": [
                member(0, "in", "", Value::Null),
                member(1, "out", "the file is gone", Value::Null),
                member(2, "resyncing", "", json!(0.5)),
            ],
        });
        let expected = "\
replication 2 over 3 devices, 4 partitions; 1 keys unsettled
last scrub: 9 keys, 0 errors
#  device  state      copied   repaired  failed  why
0  /d/0    in         1.0 MiB  2         3
1  /d/1    out        1.0 MiB  2         3       the file is gone
2  /d/2    resyncing  1.0 MiB  2         3       [##########..........] 50 % 1 min 15 s left
";
        assert_eq!(table(&array), expected);
        let scrub = json!({
            "running": true, "keys": 9, "keys_total": 36, "errors": 1, "progress": 0.25, "seconds_left": 75,
        });
        let told = "\nscrub under way: 9 of 36 keys, 1 errors [#####...............] 25 % 1 min 15 s left\n";
        assert!(table(&json!({ "scrub": scrub })).contains(told));
        let counting = json!({ "running": true, "keys": 0, "keys_total": 0, "errors": 0, "progress": null });
        assert_eq!(scrubbed(&counting), "0 keys, 0 errors", "it counts its keys");
        let packing = json!({ "mechanism": "packing 4+2", "packing_waiting": 5, "sets_loose": 1 });
        assert!(table(&packing).contains("\npacking: 5 keys wait, 1 sets to look through\n"));
        let choice = json!({ "mechanism": "splitting 4+2", "space_percent": 151, "device_ns": 12_340 });
        let pick = json!({
            "value_bytes_max": 4096, "mechanism": "splitting 4+2", "partitions": 3, "partitions_asked": 4,
            "stores_percent": 50, "updates_percent": 25, "retrieves_percent": 25, "choices": [choice],
        });
        let auto = json!({ "mechanism": "auto", "picks": [pick], "keys_moved": 5 });
        let told = "\nto 4.0 KiB: splitting 4+2 in 3 of 4 partitions; of 100 operations 50 stores, 25 overwrites, \
                    25 reads, 0 deletes: splitting 4+2 151 % and 12.3 us\n5 keys were moved to what their";
        assert!(table(&auto).contains(told), "{}", table(&auto));
        assert_eq!(duration(3_660), "1 h 1 min");
        assert_eq!(
            (bytes(1023), bytes(1536), bytes(5 << 40)),
            ("1023 B".into(), "1.5 KiB".into(), "5.0 TiB".into())
        );
    }
}
