//! Two hosts made of network namespaces, with a cable between them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The address of each host at its end of the cable.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The same of IPv6.
pub const ADDRESSES_V6: [&str; 2] = ["fd77::1", "fd77::2"];

/// Two network namespaces in a user namespace of their own, which end with this value or with the test.
pub struct Hosts {
    holders: [Holder; 2],
}

/// A process that keeps a namespace, until its standard input closes.
struct Holder {
    process: Child,
    _stdin: Option<ChildStdin>,
}

impl Holder {
    /// Runs `command`, which ends in a shell in a new namespace.
    fn start(command: &mut Command) -> Result<Self, String> {
        let told = format!("{command:?}");
        command.args(["sh", "-c", "echo ready; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{told}: {e}"))?;
        let mut line = String::new();
        let stdout = process.stdout.take().ok_or("no standard output")?;
        let _ = BufReader::new(stdout).read_line(&mut line);
        let mut holder = Self {
            _stdin: process.stdin.take(),
            process,
        };
        if line == "ready\n" {
            return Ok(holder);
        }
        let mut why = String::new();
        if let Some(mut stderr) = holder.process.stderr.take() {
            let _ = stderr.read_to_string(&mut why);
        }
        Err(format!("{told}: {}", why.trim()))
    }

    fn pid(&self) -> String {
        self.process.id().to_string()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Hosts {
    /// Two hosts with a cable, or `None` where namespaces cannot be made: the reason is printed.
    pub fn new() -> Option<Self> {
        match Self::make() {
            Ok(hosts) => Some(hosts),
            Err(reason) => {
                eprintln!("skipped: two hosts of network namespaces cannot be made here: {reason}");
                None
            }
        }
    }

    fn make() -> Result<Self, String> {
        let first = Holder::start(Command::new("unshare").args(["--map-root-user", "--net"]))?;
        let inside = ["--user", "--preserve-credentials", "unshare", "--net"];
        let mut second = Command::new("nsenter");
        second.args(["--target", &first.pid()]).args(inside);
        let second = Holder::start(&mut second)?;
        let hosts = Self {
            holders: [first, second],
        };
        let peer = hosts.holders[1].pid();
        hosts.ip(
            0,
            &format!("link add cable type veth peer name cable netns {peer}"),
        )?;
        for (host, (v4, v6)) in ADDRESSES.iter().zip(ADDRESSES_V6).enumerate() {
            hosts.ip(host, &format!("addr add {v4}/24 dev cable"))?;
            // Without IPv6 only the tests of it fail.
            let _ = hosts.ip(host, &format!("addr add {v6}/64 dev cable nodad"));
            hosts.ip(host, "link set lo up")?;
            hosts.ip(host, "link set cable up")?;
        }
        Ok(hosts)
    }

    /// Cuts the cable.
    pub fn cut(&self) {
        self.ip(0, "link set cable down").unwrap();
    }

    /// Makes the cable slow: so many megabits a second, each way. Returns why not, where the kernel cannot.
    pub fn slow_down(&self, megabits: usize) -> Result<(), String> {
        let shape =
            format!("tc qdisc add dev cable root tbf rate {megabits}mbit burst 64kb latency 100ms");
        (0..2).try_for_each(|host| self.run(host, &shape))
    }

    fn ip(&self, host: usize, words: &str) -> Result<(), String> {
        self.run(host, &format!("ip {words}"))
    }

    fn run(&self, host: usize, line: &str) -> Result<(), String> {
        let (program, words) = line.split_once(' ').unwrap_or((line, ""));
        let mut command = self.on(host, Command::new(program).args(words.split(' ')));
        let output = command.output().map_err(|e| format!("{line}: {e}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{line}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
        }
    }

    /// The words before a command that is to run on a host.
    pub fn prefix(&self, host: usize) -> Vec<String> {
        let pid = self.holders[host].pid();
        let words = [
            "nsenter",
            "--target",
            &pid,
            "--user",
            "--preserve-credentials",
            "--net",
            "--",
        ];
        words.map(str::to_owned).into()
    }

    /// `command` with its environment, on a host.
    pub fn on(&self, host: usize, command: &Command) -> Command {
        let prefix = self.prefix(host);
        let mut there = Command::new(&prefix[0]);
        there
            .args(&prefix[1..])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there
    }
}
