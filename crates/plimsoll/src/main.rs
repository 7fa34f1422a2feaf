//! The binary `plimsoll`: the command line over the libraries, the allocator and the exit code.
//!
//! Role: one program for serving, for devices and for the simulator. Never: a decision of the product.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: plimsoll_reactor::Allocator = plimsoll_reactor::Allocator;

fn main() -> ExitCode {
    cli::main()
}
