//! The clients of the world, each as a program of its own: `node/`, `go/`, `java/` and `python/`.
//!
//! Their packages are pinned there, and `make prepare` puts them into the target directory; no test uses the
//! network. Go's and Java's programs are compiled here, so that a change of one is seen.

use super::process::Directory;
use super::process::directory;
use super::program::succeeds;
use super::{pins, python, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the programs.
pub(crate) fn programs(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(language)
}

/// What `make prepare` has put into the target directory.
pub(crate) fn installed(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..").join(name);
    assert!(path.exists(), "{} is missing; `make prepare` installs what the tests need", path.display());
    path.canonicalize().expect("it exists")
}

/// A program of the machine, or the one that `make prepare` took because the machine's is too old.
fn program_of_machine(name: &str) -> PathBuf {
    let taken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../venv/bin").join(name);
    if taken.exists() { taken } else { name.into() }
}

/// A program for Python, its files kept out of the checkout.
pub(crate) fn python_program(file: &str) -> Command {
    let mut command = Command::new(python());
    command.arg(programs("python").join(file)).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("TMPDIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn node_program(file: &str) -> Command {
    let mut command = Command::new(program_of_machine("node"));
    command.arg(programs("node").join(file)).env("NODE_PATH", installed("clients/node/node_modules"));
    command
}

/// The folder with the programs for Go, built once.
fn go_programs() -> &'static Path {
    static BUILT: OnceLock<Directory> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = directory("go-programs");
        let mut build = Command::new(program_of_machine("go"));
        build.args(["build", "-mod=readonly", "-o"]).arg(&*folder).arg("./...").current_dir(programs("go"));
        run(build.env("GOTOOLCHAIN", "local").env("GOPROXY", "off"));
        folder
    })
}

/// The words for Java's class path: the programs, compiled once, and what they use.
fn java_classes() -> &'static str {
    static COMPILED: OnceLock<(Directory, String)> = OnceLock::new();
    let (_, words) = COMPILED.get_or_init(|| {
        let (folder, jars) = (directory("java-programs"), installed("clients/java/jars").join("*"));
        let files = std::fs::read_dir(programs("java")).expect("the folder of the programs");
        let files = files.map(|file| file.expect("a file of the folder").path());
        let sources = files.filter(|path| path.extension().is_some_and(|end| end == "java"));
        let mut compile = Command::new("javac");
        compile.args(["--release", "17", "-parameters", "-encoding", "UTF-8", "-Xlint:-options", "-cp"]);
        run(compile.arg(&jars).arg("-d").arg(&*folder).args(sources));
        let words = format!("{}:{}", folder.display(), jars.display());
        (folder, words)
    });
    words
}

fn java_program(class: &str) -> Command {
    let mut command = Command::new("java");
    // Small, and no second compiler: the programs are short and run beside others.
    command.args([
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-Dfile.encoding=UTF-8",
        "-cp",
        java_classes(),
        class,
    ]);
    command
}

#[test]
fn redis_py() {
    let used = ["redis"].map(pins::python).map(|used| used.replace("redis ", "redis-py "));
    succeeds("redis-py", &mut python_program("redis_py.py"), &used);
}

#[test]
fn django() {
    succeeds("django", &mut python_program("django_cache.py"), &["django", "django-redis"].map(pins::python));
}

#[test]
fn celery() {
    succeeds("celery", &mut python_program("celery_results.py"), &["celery"].map(pins::python));
}

#[test]
fn node_redis() {
    succeeds("node-redis", &mut node_program("node_redis.js"), &["redis"].map(pins::node));
}

#[test]
fn ioredis() {
    succeeds("ioredis", &mut node_program("ioredis.js"), &["ioredis"].map(pins::node));
}

#[test]
fn go_redis() {
    let used = ["github.com/redis/go-redis/v9"].map(pins::go);
    succeeds("go-redis", &mut Command::new(go_programs().join("goredis")), &used);
}

#[test]
fn rueidis() {
    let used = ["github.com/redis/rueidis"].map(pins::go);
    succeeds("rueidis", &mut Command::new(go_programs().join("rueidis")), &used);
}

#[test]
fn jedis() {
    succeeds("jedis", &mut java_program("JedisProgram"), &["jedis"].map(pins::java));
}

#[test]
fn lettuce() {
    succeeds("lettuce", &mut java_program("LettuceProgram"), &["lettuce-core"].map(pins::java));
}

#[test]
fn spring_cache() {
    succeeds("spring-cache", &mut java_program("SpringCacheProgram"), &["spring-data-redis"].map(pins::java));
}

#[test]
fn a_program_that_fails_fails_its_test() {
    let caught = std::panic::catch_unwind(|| {
        let words = ["-c", "echo restart; read answer; echo sh 1: ok; exit 3"];
        succeeds("fails", Command::new("sh").args(words), &["sh 1".to_owned()]);
    });
    let words = caught.expect_err("its status is 3");
    assert!(words.downcast_ref::<String>().is_some_and(|words| words.contains("exit status: 3")));
}
