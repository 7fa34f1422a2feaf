//! `plimsoll device format|info|verify`.

use anyhow::{Result, anyhow, bail};
use clap::Subcommand;
use plimsoll_flash::Superblock;
use plimsoll_flash::format::superblock::PARTITIONS_MAX;
use plimsoll_reactor::{FileOptions, StartOptions};
use plimsoll_server::config::Size;
use plimsoll_server::serve::{self, FormatAsked};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Make a device: a block device, or a file of a given size.
    Format {
        /// The file or block device.
        path: PathBuf,
        /// Destroy what it holds.
        #[arg(long)]
        force: bool,
        /// Partitions, fixed for good [default: one for each processor].
        #[arg(long, value_name = "N", value_parser = partition_counts())]
        partitions: Option<u16>,
        /// Bytes of a segment [default: by the size of the device].
        #[arg(long, value_name = "SIZE")]
        segment: Option<Size>,
        /// Size of the file, if it has to be made.
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
    },
    /// Say what a device is.
    Info {
        /// The file or block device.
        path: PathBuf,
    },
    /// Read and check every record of a device that is not in use.
    Verify {
        /// The file or block device.
        path: PathBuf,
    },
}

fn utf8(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| anyhow!("{}: not UTF-8", path.display()))
}

impl Command {
    pub(super) fn run(self) -> Result<()> {
        let cpu = *serve::processors()?.first().ok_or_else(|| anyhow!("no processor to run on"))?;
        let options = StartOptions::on(vec![cpu]);
        match self {
            Command::Format { path, force, partitions, segment, size } => {
                let path = utf8(path)?;
                let segment_bytes = segment.map(|size| u32::try_from(size.0)).transpose();
                let segment_bytes = segment_bytes.map_err(|_| anyhow!("--segment: at most 8MiB"))?;
                let cores = serve::processors()?.len().min(plimsoll_reactor::limits::CORES_MAX);
                let partitions = partitions.unwrap_or(u16::try_from(cores).expect("cores are few"));
                let asked = FormatAsked { partitions, segment_bytes, force, hash_secret: None };
                format(&options, path, size, asked)
            }
            Command::Info { path } => info(&options, utf8(path)?),
            Command::Verify { path } => verify(&options, utf8(path)?),
        }
    }
}

fn format(options: &StartOptions, path: String, size: Option<Size>, asked: FormatAsked) -> Result<()> {
    if let Some(size) = size {
        serve::check_new_file(&path, size.0, &asked)?;
    }
    let superblock = serve::run_on_reactor(options, move |reactor| async move {
        let options = FileOptions { create_bytes: size.map(|size| size.0), read_only: false };
        let file = serve::open_when_free(&reactor, &path, &options).await?;
        if let Some(asked) = size.filter(|size| size.0 != file.size_bytes()) {
            let actual = Size(file.size_bytes());
            bail!(
                "{path}: the device keeps its size of {actual}; leave --size {asked} out, or remove the file"
            );
        }
        serve::format(&reactor, &file, &asked).await.map_err(|error| anyhow!("{path}: {error}"))
    })?;
    print(&superblock);
    Ok(())
}

fn info(options: &StartOptions, path: String) -> Result<()> {
    let superblock = serve::run_on_reactor(options, move |reactor| async move {
        let file = reactor.open_file(&path, &FileOptions { create_bytes: None, read_only: true })?;
        plimsoll_flash::inspect(&file).await.map_err(|error| anyhow!("{path}: {error}"))
    })?;
    print(&superblock);
    Ok(())
}

fn print(superblock: &Superblock) {
    let segments = u64::from(superblock.segments_per_partition) * u64::from(superblock.partitions);
    let lines = [
        ("format version", superblock.format_version.to_string()),
        ("device id", superblock.device_id.iter().map(|byte| format!("{byte:02x}")).collect()),
        ("created", format!("{} ms since 1970", superblock.created_ms)),
        ("size", Size(superblock.device_bytes).to_string()),
        ("partitions", superblock.partitions.to_string()),
        ("segment size", Size(u64::from(superblock.segment_bytes)).to_string()),
        ("segments", segments.to_string()),
        ("block size", superblock.block_bytes.to_string()),
        ("written ahead", if superblock.written_ahead { "yes" } else { "as it fills" }.to_owned()),
    ];
    for (name, value) in lines {
        println!("{name:<16}{value}");
    }
}

fn verify(options: &StartOptions, path: String) -> Result<()> {
    let name = path.clone();
    let report = serve::run_on_reactor(options, move |reactor| async move {
        // Opened for writing, so that no server may change it meanwhile; nothing is written.
        let file = serve::open_when_free(&reactor, &path, &FileOptions::default()).await?;
        let mut told_percent = 0;
        let progress = |done: u64, total: u64| {
            let percent = done * 100 / total.max(1);
            if percent >= told_percent + 10 {
                told_percent = percent;
                eprintln!("{percent} % of {}", Size(total));
            }
        };
        plimsoll_flash::verify(&file, progress).await.map_err(|error| anyhow!("{path}: {error}"))
    })?;
    println!("{} records, {} bytes: read and proved", report.records, report.bytes);
    for finding in &report.findings {
        println!("damaged: {finding}");
    }
    if report.damaged_bytes > 0 || !report.findings.is_empty() {
        bail!("{name}: {} bytes of live records are damaged", report.damaged_bytes);
    }
    Ok(())
}

/// How many partitions a device may have.
fn partition_counts() -> impl clap::builder::TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=i64::from(PARTITIONS_MAX))
}
