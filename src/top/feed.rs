//! The thread that asks the console, so that the keys work while it waits; after a broken connection it makes a new one.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use tokio::time::Instant;

use super::views::View;
use crate::operator::Error;
use crate::operator::console::{Console, Rows};
use crate::operator::target::Target;

/// What the console said at one time.
pub struct Sample {
    /// The view it was asked for.
    pub view: &'static View,
    /// Its rows, or why there are none.
    pub rows: Result<Rows, String>,
    /// SHOW POOLS, for the line above.
    pub pools: Rows,
    /// SHOW STATS, for the rates.
    pub stats: Rows,
    /// SHOW VERSION.
    pub version: String,
    /// Since the thread began.
    pub at: Duration,
    /// The local time, as `HH:MM:SS`.
    pub clock: String,
}

/// The thread's two ends. It ends when this is dropped.
pub struct Feed {
    questions: Sender<&'static View>,
    answers: Receiver<Result<Sample, String>>,
}

impl Feed {
    /// Connects, and starts the thread.
    pub fn start(target: Target) -> Result<Self, Error> {
        let mut asker = Asker {
            console: Some(Console::connect(&target)?),
            target,
            begin: Instant::now(),
        };
        let (questions, asked) = channel();
        let (tell, answers) = channel();
        std::thread::Builder::new()
            .name("console".to_owned())
            .spawn(move || {
                for view in asked {
                    let answer = asker.sample(view).map_err(|error| error.to_string());
                    if tell.send(answer).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { questions, answers })
    }

    /// Asks for a view; false if the thread is gone.
    pub fn ask(&self, view: &'static View) -> bool {
        self.questions.send(view).is_ok()
    }

    /// An answer, if there is one: the error is of the connection.
    pub fn take(&self) -> Option<Result<Sample, String>> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the asking thread has ended".to_owned())),
        }
    }
}

struct Asker {
    console: Option<Console>,
    target: Target,
    begin: Instant,
}

impl Asker {
    fn sample(&mut self, view: &'static View) -> Result<Sample, Error> {
        let mut console = match self.console.take() {
            Some(console) => console,
            None => Console::connect(&self.target)?,
        };
        let version = console.show("VERSION")?;
        let pools = console.show("POOLS")?;
        let stats = console.show("STATS")?;
        let mut rows = match console.show(view.show) {
            // Of another pooler's console, perhaps; the connection is well.
            Err(Error::Refused { severity, message }) if severity != "FATAL" => Err(message),
            rows => Ok(rows?),
        };
        if let Ok(rows) = &mut rows {
            view.keep(rows);
        }
        self.console = Some(console);
        let version = version.rows.into_iter().flatten().flatten().next();
        Ok(Sample {
            view,
            rows,
            pools,
            stats,
            version: version.unwrap_or_default(),
            at: self.begin.elapsed(),
            clock: jiff::Zoned::now().strftime("%H:%M:%S").to_string(),
        })
    }
}
