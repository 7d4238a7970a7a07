//! A process that ends with the value that stands for it.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Pid, Signal, kill_process};

/// A running program, killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program with more variables in its environment. What it prints goes to `log`.
    pub fn start(
        program: &Path,
        arguments: &[OsString],
        variables: &[(String, OsString)],
        log: &Path,
    ) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log for the process");
        // The system kills it when the thread that started it ends, which no `Drop` can promise of
        // a test that is itself killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.arg(program).args(arguments);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a second handle of the log"));
        command.stdout(log);
        Self {
            child: spawn(command),
        }
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops it in its tracks: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.send(Signal::STOP);
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.send(Signal::CONT);
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn send(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        // A process that is not waited for keeps its id, so this hits no other.
        kill_process(id, signal).expect("the process is our own");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a command on a thread that lives as long as this program: the thread of one test may end
/// long before the server that it shares with others.
fn spawn(command: Command) -> Child {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, received) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                // Whoever asked waits for the answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, started) = channel();
    starter
        .send((command, answer))
        .expect("the thread that starts processes lives");
    started
        .recv()
        .expect("the thread that starts processes answers")
        .unwrap_or_else(|error| panic!("cannot start a process through `setpriv`: {error}"))
}
