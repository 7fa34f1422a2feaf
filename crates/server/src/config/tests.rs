//! Sizes, lists, layers, and errors that say what and where.

use super::*;
use plimsoll_array::{Mechanism, Policy};

fn config(text: &str) -> Result<Config, String> {
    let layer: Layer = toml::from_str(text).map_err(|error| error.to_string())?;
    Config::new(layer, None, &[0, 1]).map_err(|error| error.to_string())
}

#[test]
fn sizes_are_read_and_written() {
    for (text, bytes) in [
        ("10GiB", 10 << 30),
        ("1 kib", 1024),
        ("5MB", 5_000_000),
        ("4096", 4096),
        ("7B", 7),
        ("2TiB", 2 << 40),
    ] {
        assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
    }
    for text in ["", "GiB", "1.5GiB", "-1", "99999999999TiB", "10 Gib s", "é"] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
    assert_eq!(Size(10 << 30).to_string(), "10GiB");
    assert_eq!(Size(1500).to_string(), "1500");
}

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(parse_cores("0-3,8"), Ok(vec![0, 1, 2, 3, 8]));
    assert_eq!(parse_cores("5"), Ok(vec![5]));
    for list in ["", "a", "3-1", "0,0", "0-999", "1,,2"] {
        assert!(parse_cores(list).is_err(), "{list}");
    }
}

#[test]
fn unknown_keys_are_named_with_their_place() {
    let error = config("size = '1GiB'\nresq = '127.0.0.1:1'\n").unwrap_err();
    assert!(error.contains("resq") && error.contains("line 2"), "{error}");
    let error = config("size = 'much'").unwrap_err();
    assert!(error.contains("'much' is no size"), "{error}");
    assert!(config("durability = 'never'").unwrap_err().contains("sync"));
}

#[test]
fn what_cannot_be_done_is_refused_in_words() {
    assert!(config("nvme = '127.0.0.1:4420'").unwrap_err().contains("does not serve NVMe/TCP yet"));
    assert!(config("clients-max = 0").is_err());
    assert!(config("cores = '4711'").unwrap_err().contains("not on processor 4711"));
    assert!(config("size = -1").unwrap_err().contains("like \"10GiB\""));
    assert!(config("cores = '1-0'").unwrap_err().starts_with("cores: "));
}

#[test]
fn addresses_can_be_left_out_and_need_what_belongs_to_them() {
    let files = "tls-cert = 'c'\ntls-key = 'k'\n";
    let of = |text: &str| config(&format!("{files}{text}"));
    let both = of("tls-resp = '127.0.0.1:6380'").unwrap();
    assert_eq!(both.network.addresses().plain, Some(SocketAddr::from(([127, 0, 0, 1], 6379))));
    assert_eq!(both.network.addresses().tls, Some(SocketAddr::from(([127, 0, 0, 1], 6380))));
    let files_of = both.network.tls_files().unwrap();
    assert_eq!((files_of.certificate, files_of.client_authorities), (PathBuf::from("c"), None));
    let alone = of("tls-resp = '[::1]:0'\nresp = 'none'\ntls-client-ca = 'a'").unwrap();
    assert_eq!(alone.network.addresses().plain, None);
    assert!(alone.print().contains("resp = \"none\"") && alone.print().contains("tls-client-ca = \"a\""));
    // Off: nothing is read, whatever is named.
    assert!(of("tls-resp = 'none'").unwrap().network.tls_files().is_none());
    let refused = |text: &str| config(text).unwrap_err();
    assert!(of("").unwrap_err().starts_with("tls-cert: given, but TLS is not served"));
    assert!(refused("tls-resp = '127.0.0.1:1'\ntls-cert = 'c'").contains("needs tls-key"));
    assert!(refused("tls-resp = '127.0.0.1:1'\ntls-key = 'k'").contains("needs tls-cert"));
    assert!(refused("resp = 'none'").contains("no client could connect"));
    assert!(refused("resp = ''").contains("'' is no address"));
    assert!(refused("resp = '6379'").contains("like \"127.0.0.1:6379\""));
    assert!(of("tls-resp = '127.0.0.1:6379'").unwrap_err().starts_with("tls-resp: the same address as resp"));
    assert!(refused("resp = '127.0.0.1:8379'").starts_with("admin: the same address as resp"));
    let admin = of("tls-resp = '127.0.0.1:6380'\nadmin = '127.0.0.1:6380'").unwrap_err();
    assert!(admin.starts_with("admin: the same address as tls-resp"), "{admin}");
    // One for all addresses has those of the others, too.
    let meeting = [("0.0.0.0:7", true), ("[::]:7", true), ("[::ffff:127.0.0.1]:7", true), ("[::1]:7", false)];
    for (resp, is_refused) in meeting {
        let both = config(&format!("unprotected = true\nresp = '{resp}'\nadmin = '127.0.0.1:7'"));
        assert_eq!(both.is_err(), is_refused, "{resp}: {both:?}");
    }
    assert!(of("tls-resp = '127.0.0.1:0'\nresp = '127.0.0.1:0'\nadmin = '127.0.0.1:0'").is_ok());
    let open = of("tls-resp = '0.0.0.0:6380'").unwrap_err();
    assert!(open.starts_with("tls-resp: others can reach 0.0.0.0:6380"), "{open}");
    assert!(of("tls-resp = '0.0.0.0:6380'\npassword = 'p'").is_ok());
}

#[test]
fn the_cache_has_a_size_or_is_off() {
    for (text, bytes) in [
        ("", 64 << 20),
        ("cache = '1GiB'", 1 << 30),
        ("cache = 0", 0),
        ("cache = '0'", 0),
        ("cache = '1MiB'", 1 << 20),
    ] {
        assert_eq!(config(text).unwrap().cache, Size(bytes), "{text}");
    }
    assert!(config("").unwrap().print().contains("cache = \"64MiB\"\n"));
    assert!(config("cache = 64").unwrap_err().contains("64 are too few"), "most likely MiB were meant");
}

#[test]
fn what_a_full_device_does_is_read() {
    assert_eq!(config("").unwrap().on_full, OnFullName::Error);
    let evicts = config("on-full = 'evict'").unwrap();
    assert_eq!(evicts.on_full, OnFullName::Evict);
    assert!(evicts.print().contains("on-full = \"evict\"\n"));
    assert!(config("on-full = 'lru'").unwrap_err().contains("unknown variant"));
}

#[test]
fn the_driver_has_a_name() {
    assert_eq!(config("").unwrap().driver, DriverName::Auto);
    for (name, choice) in
        [("auto", DriverChoice::Auto), ("uring", DriverChoice::Uring), ("portable", DriverChoice::Portable)]
    {
        let config = config(&format!("driver = '{name}'")).unwrap();
        assert_eq!(DriverChoice::from(config.driver), choice);
        assert!(config.print().contains(&format!("driver = \"{name}\"\n")));
    }
    assert!(config("driver = 'epoll'").unwrap_err().contains("unknown variant"));
}

#[test]
fn parameters_are_read_and_bounded() {
    let text = "timeout = 5\nslowlog-log-slower-than = -1\nslowlog-max-len = 7\nlatency-monitor-threshold = 3\n\
                clients-max = 9\nenable-debug-command = 'local'\ntryagain-after = 20";
    let config = config(text).unwrap();
    let values = config.parameters();
    let all = crate::parameters::PARAMETERS.iter().map(|spec| values.get(spec.parameter));
    assert_eq!(all.collect::<Vec<_>>(), [9, 3, -1, 7, 5, 20]);
    assert_eq!(config.enable_debug_command, DebugCommand::Local);
    let refused = |text| super::tests::config(text).unwrap_err();
    assert_eq!(refused("timeout = -1"), "timeout: argument must be between 0 and 2147483647 inclusive");
    assert!(refused("slowlog-max-len = 1000000").starts_with("slowlog-max-len: argument must be between 0"));
    assert!(refused("clients-max = 99999999999").starts_with("clients-max: "));
}

#[test]
fn flags_win_and_what_is_printed_can_be_read() {
    let file: Layer = toml::from_str("size = '1GiB'\ndurability = 'group'\ndata = 'd'").unwrap();
    let flags = Layer { size: Some(Size(2 << 30)), ..Layer::default() };
    let config = Config::new(flags.over(file), None, &[0, 1]).unwrap();
    assert_eq!((config.size, config.durability), (Size(2 << 30), DurabilityName::Group));
    assert_eq!(config.devices, [Path::new("d").join(DEVICE_FILE)]);
    let printed = config.print();
    let layer: Layer = toml::from_str(&printed).unwrap();
    let again = Config::new(layer, None, &[0, 1]).unwrap();
    assert_eq!(again.print(), printed);
    assert!(printed.contains("cores = \"0,1\"") && printed.contains("clients-max = 10000"), "{printed}");
}

const THREE: &str = "device = ['a', 'b', 'c']\n";

#[test]
fn several_devices_are_an_array() {
    assert_eq!(config("device = ['a']").unwrap().array, None);
    let array = |text: &str| config(text).unwrap().array.unwrap();
    let policy = |text: &str| array(text).policy();
    let copies = |count| Policy::from(Mechanism::Replication { copies: count });
    assert_eq!(policy("device = ['a', 'b']"), copies(2));
    assert_eq!(policy(THREE), copies(3));
    assert_eq!(policy("device = ['a', 'b', 'c', 'd']"), copies(3));
    let given = array(&format!("{THREE}[array]\ncopies = 2\ndegraded = true\nrebuild-rate = '100MiB'"));
    assert_eq!(given.policy(), copies(2));
    assert_eq!((given.degraded, given.rebuild_rate), (true, Some(Size(100 << 20))));
    assert!(!given.stateless && array(&format!("{THREE}[array]\nstateless = true")).stateless);
    let split = |data, parities| Policy::from(Mechanism::Splitting { data, parities });
    let splitting = |devices: &str, more: &str| {
        policy(&format!("device = [{devices}]\n[array]\nmechanism = 'splitting'\n{more}"))
    };
    assert_eq!(splitting("'a', 'b', 'c'", ""), split(2, 1));
    assert_eq!(splitting("'a', 'b', 'c', 'd', 'e', 'f', 'g'", ""), split(4, 2));
    assert_eq!(splitting("'a', 'b', 'c', 'd', 'e'", "parities = 1"), split(4, 1));
    assert_eq!(splitting("'a', 'b', 'c', 'd', 'e'", "data = 2\nparities = 3"), split(2, 3));
    let pack = |data, parities| Policy::from(Mechanism::Packing { data, parities });
    let packing = |devices: &str, more: &str| {
        policy(&format!("device = [{devices}]\n[array]\nmechanism = 'packing'\n{more}"))
    };
    assert_eq!(packing("'a', 'b', 'c'", ""), pack(2, 1));
    assert_eq!(packing("'a', 'b', 'c', 'd', 'e', 'f', 'g'", ""), pack(4, 2));
    assert_eq!(packing("'a', 'b', 'c', 'd', 'e'", "parities = 1"), pack(4, 1));
    assert_eq!(packing("'a', 'b', 'c', 'd', 'e'", "data = 2\nparities = 3"), pack(2, 3));
    let chosen = policy(&format!("{THREE}[array]\nmechanism = 'auto'"));
    assert_eq!(chosen.to_string(), "auto for space: replication 2 or splitting 2+1 or packing 2+1");
    let hashing = array(&format!("{THREE}[array]\nmechanism = 'hashing'"));
    assert_eq!((hashing.policy(), hashing.degraded), (Mechanism::Hashing.into(), false));
}

const SIZES: &str = "device = ['a', 'b', 'c', 'd', 'e', 'f']
[[array.sizes]]
to = '4KiB'
copies = 2
[[array.sizes]]
\
     mechanism = 'splitting'
";

#[test]
fn sizes_have_mechanisms_of_their_own() {
    let policy = config(SIZES).unwrap().array.unwrap().policy();
    assert_eq!(policy.to_string(), "replication 2 to 4096 bytes, splitting 4+2 above");
    let packed = config(&SIZES.replace("copies = 2", "mechanism = 'packing'\nparities = 1"));
    let policy = packed.unwrap().array.unwrap().policy();
    assert_eq!(policy.to_string(), "packing 4+1 to 4096 bytes, splitting 4+2 above");
    let refused = |text: &str| config(&format!("{THREE}{text}")).unwrap_err();
    let both = refused("[array]\ncopies = 2\n[[array.sizes]]\nmechanism = 'hashing'");
    assert!(both.starts_with("array.sizes: each range has a mechanism of its own"), "{both}");
    let ends = refused("[[array.sizes]]\nto = '4KiB'");
    assert_eq!(ends, "array.sizes: values above 4096 bytes have no mechanism: the last range has no end");
    let falls = refused("[[array.sizes]]\nto = 9\n[[array.sizes]]\nto = 9\n[[array.sizes]]");
    assert!(falls.starts_with("array.sizes: range 2, up to 9 bytes, does not end above"), "{falls}");
    assert_eq!(refused("[array]\nsizes = []"), "array.sizes: 0 ranges of sizes; there are 1 to 8");
    let few = refused("[[array.sizes]]\nto = 9\n[[array.sizes]]\nmechanism = 'splitting'\ndata = 3");
    assert_eq!(few, "array.sizes, range 2: splitting 3+1 needs 4 devices, there are 3");
    let few = refused("[[array.sizes]]\nmechanism = 'packing'\ndata = 3");
    assert_eq!(few, "array.sizes, range 1: packing 3+1 needs 4 devices, there are 3");
    let copies = refused("[[array.sizes]]\nmechanism = 'hashing'\ncopies = 2");
    assert!(copies.starts_with("array.sizes, range 1: copies: hashing has one copy"), "{copies}");
    assert!(refused("[[array.sizes]]\nfrom = 2").contains("from"));
}

#[test]
fn clients_may_ask_for_what_is_named() {
    let custom = |names: &str| config(&format!("{THREE}[array]\ncopies = 2\ncustom = [{names}]"));
    let policy = custom("'hashing', 'splitting 2+1', 'packing 2+1'").unwrap().array.unwrap().policy();
    assert_eq!(policy.to_string(), "replication 2, when asked hashing or splitting 2+1 or packing 2+1");
    let by_size = config(&format!("{THREE}[array]\ncustom = ['hashing']\n[[array.sizes]]\ncopies = 2"));
    assert_eq!(by_size.unwrap().array.unwrap().policy().mechanisms().count(), 2);
    let refused = |names: &str| custom(names).unwrap_err();
    assert!(refused("'copies'").starts_with("array.custom: 'copies' is no mechanism: hashing, replication"));
    assert_eq!(refused("'replication 4'"), "array.custom: replication 4 needs 4 devices, there are 3");
    assert_eq!(refused("'packing 4+2'"), "array.custom: packing 4+2 needs 6 devices, there are 3");
    let many = refused(&["'hashing'"; 9].join(", "));
    assert_eq!(many, "array.custom: 9 mechanisms that clients may ask for; there are 8 at most");
}

#[test]
fn an_array_that_is_printed_can_be_read() {
    let split = "[array]\nmechanism = 'splitting'\ndata = 2";
    let sizes = SIZES.split_once('\n').unwrap().1;
    let sizes = sizes.replace("'splitting'", "'hashing'");
    let rate = "[array]\ncopies = 2\nrebuild-rate = '1MiB'\nstateless = true";
    let custom = format!("[array]\ncustom = ['splitting 2+1', 'packing 2+1', 'hashing']\n{sizes}");
    let pack = "[array]\nmechanism = 'packing'\nparities = 1";
    let auto = "[array]\nmechanism = 'auto'\ngoal = 'throughput'";
    for of_array in ["", "[array]\nmechanism = 'hashing'", auto, rate, split, pack, &sizes, &custom] {
        let printed = config(&format!("{THREE}{of_array}")).unwrap().print();
        assert_eq!(config(&printed).unwrap().print(), printed);
        assert!(
            printed.contains("device = [\"a\", \"b\", \"c\"]") && printed.contains("[array]\n"),
            "{printed}"
        );
    }
}

#[test]
fn what_no_array_can_be_is_refused_in_words() {
    let refused = |text: &str| config(text).unwrap_err();
    let of_three = |text: &str| refused(&format!("{THREE}[array]\n{text}"));
    let many: Vec<String> = (0..=DEVICES_MAX).map(|number| format!("'{number}'")).collect();
    let many = refused(&format!("device = [{}]", many.join(", ")));
    assert_eq!(many, "device: 65 were given; an array has 64 at most");
    assert!(refused("device = ['a', 'b', 'a']").contains("a and a are the same device"));
    assert!(refused("device = ['a', './a']").contains("a and ./a are the same device"));
    assert!(refused("[array]\ncopies = 2").starts_with("array: one device is given"));
    assert_eq!(of_three("copies = 4"), "array: replication 4 needs 4 devices, there are 3");
    assert!(of_three("copies = 0").contains("at least one"));
    assert!(of_three("mechanism = 'hashing'\ncopies = 2").starts_with("array.copies: hashing has one copy"));
    assert!(of_three("mechanism = 'splitting'\ncopies = 2").starts_with("array.copies: splitting has"));
    let copies = of_three("mechanism = 'packing'\ncopies = 2");
    assert!(copies.starts_with("array.copies: packing has one copy of each object, and par"), "{copies}");
    for other in ["data = 2", "parities = 1", "mechanism = 'hashing'\ndata = 2"] {
        let shards = of_three(other);
        assert!(shards.starts_with("array.data, parities: only splitting and packing"), "{shards}");
    }
    let large = of_three("mechanism = 'splitting'\ndata = 3");
    assert_eq!(large, "array: splitting 3+1 needs 4 devices, there are 3");
    assert!(of_three("stateless = 1").contains("expected a boolean"), "{}", of_three("stateless = 1"));
    let auto = of_three("mechanism = 'auto'\ncopies = 2");
    assert!(auto.starts_with("array.copies, array.data, array.parities: auto chooses them"), "{auto}");
    assert!(of_three("goal = 'space'").starts_with("array.goal, array.failures: only mechanism = \"auto\""));
    let none = of_three("mechanism = 'auto'\nfailures = 0");
    assert!(none.starts_with("array.failures: a choice of mechanisms survives 1 failure at least"), "{none}");
    let few = of_three("mechanism = 'auto'\nfailures = 3");
    assert_eq!(few, "array.failures: to survive 3 failures takes 4 devices, not 3");
    let sizes = of_three("[[array.sizes]]\nmechanism = 'auto'");
    assert!(sizes.starts_with("array.sizes, range 1: mechanism: auto chooses for all sizes"), "{sizes}");
    assert!(of_three("mechanism = 'auto'\ngoal = 'luck'").contains("luck"));
    assert!(of_three("rebuild-rate = 0").starts_with("array.rebuild-rate: 0 bytes"));
    let large = of_three("mechanism = 'packing'\nparities = 3");
    assert_eq!(large, "array: packing 1+3 needs 4 devices, there are 3");
    assert!(of_three("mechanism = 'raid'").contains("unknown variant"));
    assert!(of_three("copys = 2").contains("copys"));
    assert!(refused(&format!("on-full = 'evict'\n{THREE}")).starts_with("on-full: several devices"));
}

#[test]
fn devices_may_be_slowed_to_measure_with() {
    assert_eq!(config("").unwrap().throttle, None);
    let both = config("[throttle]\nrequests = 1000\nbytes = '8MiB'").unwrap();
    let rates = both.throttle.unwrap().of_core(2);
    assert_eq!((rates.ops_per_s, rates.bytes_per_s), (500, 4 << 20));
    assert_eq!(config(&both.print()).unwrap().throttle, both.throttle);
    let one = config("[throttle]\nrequests = 1").unwrap();
    let rates = one.throttle.unwrap().of_core(4);
    assert_eq!((rates.ops_per_s, rates.bytes_per_s), (1, 0), "every core goes on");
    assert_eq!(config(&one.print()).unwrap().throttle, one.throttle);
    let refused = config("[throttle]\nbytes = 0").unwrap_err();
    assert!(refused.starts_with("throttle: 0 a second would never end"), "{refused}");
    assert!(config("[throttle]\nops = 1").unwrap_err().contains("ops"));
}
