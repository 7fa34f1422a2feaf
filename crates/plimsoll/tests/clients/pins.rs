//! The clients of the matrix and their versions, as the files say that pin them. README's table has a row
//! for each, with that version.

use std::collections::BTreeMap;

const PYTHON: &str = include_str!("python/requirements.txt");
const NODE: &str = include_str!("node/package.json");
const GO: &str = include_str!("go/go.mod");
const JAVA: &str = include_str!("java/pom.xml");
const README: &str = include_str!("../../../../README.md");
/// What Debian 12 has.
const DEBIAN: &str = "Debian's";

/// What stands between two words, the first time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("{before} is not pinned")).1;
    rest.split(after).next().expect("there is a first part").trim()
}

/// `NAME VERSION` as the programs say it.
pub(crate) fn python(name: &str) -> String {
    format!("{name} {}", between(PYTHON, &format!("\n{name}=="), " "))
}

pub(crate) fn node(name: &str) -> String {
    format!("{name} {}", between(NODE, &format!("\"{name}\": \""), "\""))
}

pub(crate) fn go(module: &str) -> String {
    format!("{module} {}", between(GO, &format!("\t{module} "), "\n"))
}

pub(crate) fn java(artifact: &str) -> String {
    let rest = between(JAVA, &format!("<artifactId>{artifact}</artifactId>"), "</dependency>");
    format!("{artifact} {}", between(rest, "<version>", "</version>"))
}

fn version(pinned: &str) -> String {
    pinned.rsplit(' ').next().expect("there is a last word").to_owned()
}

/// Each row of the table in README: the client and its version.
fn rows() -> BTreeMap<String, String> {
    let table = between(README, "| client | version |", "\n\n");
    let rows = table.lines().skip(2).map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    // A star says what is run with it.
    rows.map(|row| (row[1].trim_end_matches(" *").to_owned(), row[2].to_owned())).collect()
}

#[test]
fn the_table_of_clients_tells_the_versions_that_are_tested() {
    let pinned = [
        ("redis-py", version(&python("redis"))),
        ("Django", version(&python("django"))),
        ("django-redis", version(&python("django-redis"))),
        ("Celery", version(&python("celery"))),
        ("node-redis", version(&node("redis"))),
        ("ioredis", version(&node("ioredis"))),
        ("go-redis", version(&go("github.com/redis/go-redis/v9")).trim_start_matches('v').to_owned()),
        ("rueidis", version(&go("github.com/redis/rueidis")).trim_start_matches('v').to_owned()),
        ("Jedis", version(&java("jedis"))),
        ("Lettuce", version(&java("lettuce-core")).trim_end_matches(".RELEASE").to_owned()),
        ("Spring Data Redis", version(&java("spring-data-redis"))),
        ("redis-cli", DEBIAN.to_owned()),
        ("redis-benchmark", DEBIAN.to_owned()),
    ];
    let pinned = pinned.map(|(name, version)| (name.to_owned(), version));
    assert_eq!(
        rows(),
        BTreeMap::from(pinned),
        "README.md, left, says other versions than the files that pin them"
    );
}

#[test]
fn the_tests_of_redis_py_are_those_of_its_version() {
    let source = include_str!("python/tests-of-redis-py.txt");
    assert_eq!(between(source, "\nredis==", " "), version(&python("redis")));
}
