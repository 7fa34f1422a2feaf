//! The binary `plimsoll`: everything is in the library; here stand the allocator and the exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    plimsoll_server::cli::main()
}
