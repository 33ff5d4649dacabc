//! One connection of a script: it speaks one form, waits for messages with patience, and says what came.

use crate::cbor::Item;
use crate::frames::{Fields, Form, Refusal, Schema};
use crate::run::Run;
use crate::values::Bad;
use bytes::Bytes;
use drover_client::Endpoint;
use drover_client::raw::{Outgoing, RawConnection, Received};
use std::time::Duration;

/// Why a script ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Stop {
    /// The script can't be meant.
    #[error("the script is wrong: {0}")]
    Script(#[from] Bad),
    /// The relay did not do what the rule says.
    #[error("{0}")]
    Failed(String),
    /// It refused what the rule says it has to do.
    #[error("{why}")]
    Refused {
        /// The refusal's `class/code`.
        code: String,
        /// What was due, and where.
        why: String,
    },
}

pub(crate) fn fail<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(why.into()))
}

/// What is on the other end, and how long it may take.
#[derive(Clone, Debug)]
pub struct Target {
    /// The relay.
    pub endpoint: Endpoint,
    /// For one answer. Only a relay that fails is ever waited for this long.
    pub patience: Duration,
}

/// What came next.
pub(crate) enum Next {
    Message(Item),
    Pong,
    Closed(Option<u16>),
}

/// See the module.
pub(crate) struct Link {
    raw: RawConnection,
    patience: Duration,
    /// What its CONNECT was written in, hence what is expected back.
    pub(crate) form: Form,
    /// Whether the relay has answered CONNECT. Before, a refusal may come in either form.
    pub(crate) settled: bool,
    /// Whether AUTH succeeded.
    pub(crate) ready: bool,
    pub(crate) closed: bool,
    /// The JOIN that has no answer yet, and how often it was sent again.
    reserve: Option<(Bytes, u32)>,
}

/// Before a JOIN is sent again, growing: relays hash a few codes at once and send the rest away (06 D18).
const AGAIN_AFTER: Duration = Duration::from_millis(50);
const AGAIN_MAX: u32 = 40;

impl Link {
    pub(crate) async fn open(target: &Target, form: Form) -> Result<Self, Stop> {
        match RawConnection::open(&target.endpoint).await {
            Ok(raw) => Ok(Self {
                raw,
                patience: target.patience,
                form,
                settled: false,
                ready: false,
                closed: false,
                reserve: None,
            }),
            Err(error) => fail(format!("no connection: {error}")),
        }
    }

    /// Sends a JOIN whose answer may be to come again, which whoever waits for it then does, as any client would.
    pub(crate) async fn send_again_if_told(&mut self, bytes: Bytes) -> Result<(), Stop> {
        self.reserve = Some((bytes.clone(), 0));
        self.write(Outgoing::Binary(bytes)).await
    }

    pub(crate) async fn send(&mut self, message: Outgoing) -> Result<(), Stop> {
        self.reserve = None;
        self.write(message).await
    }

    async fn write(&mut self, message: Outgoing) -> Result<(), Stop> {
        match tokio::time::timeout(self.patience, self.raw.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => fail(format!("could not send: {error}")),
            Err(_) => fail("the relay does not read"),
        }
    }

    pub(crate) async fn send_frame(&mut self, name: &str, fields: &Fields, form: Form) -> Result<(), Stop> {
        let bytes = Schema::get().encode(name, fields, form)?;
        self.send(Outgoing::Binary(Bytes::from(bytes))).await
    }

    /// Asks what every relay answers, in whatever way: that it ends the connection is an answer too.
    pub(crate) async fn sign_of_life(&mut self) -> Result<(), Stop> {
        let token = Fields::from([("token".into(), Item::Bytes(vec![0; 16]))]);
        self.send_frame("JOIN_RECORD", &token, self.form).await?;
        match tokio::time::timeout(self.patience, self.raw.receive()).await {
            Ok(_) => Ok(()),
            Err(_) => fail("it takes connections and answers nothing"),
        }
    }

    /// The next message, whatever it is. `what` says what is waited for.
    pub(crate) async fn next(&mut self, what: &str) -> Result<Next, Stop> {
        let received = match tokio::time::timeout(self.patience, self.raw.receive()).await {
            Ok(Ok(received)) => received,
            Ok(Err(error)) => return fail(format!("{error} instead of {what}")),
            Err(_) => return fail(format!("nothing came instead of {what}")),
        };
        Ok(match received {
            Received::Binary(bytes) => match Item::decode(&bytes) {
                Ok(item) => {
                    if let Some((due, got)) = Schema::get().address(self.form, &item)
                        && due != got
                    {
                        return fail(format!("a PUSH whose hash is not its content's: {item}"));
                    }
                    Next::Message(item)
                }
                Err(fault) => {
                    return fail(format!(
                        "a message that is not canonical ({fault}) instead of {what}"
                    ));
                }
            },
            Received::Text => return fail(format!("a text message instead of {what}")),
            Received::Pong(_) => Next::Pong,
            Received::Closed(status) => {
                self.closed = true;
                Next::Closed(status)
            }
        })
    }

    /// The next message, which has to be one.
    pub(crate) async fn message(&mut self, what: &str) -> Result<Item, Stop> {
        loop {
            match self.next(what).await? {
                Next::Message(item) => match self.told_to_come_again(&item) {
                    None => return Ok(item),
                    Some((bytes, times)) => {
                        tokio::time::sleep(AGAIN_AFTER * times.min(10)).await;
                        self.write(Outgoing::Binary(bytes)).await?;
                    }
                },
                Next::Pong => {}
                Next::Closed(_) => return fail(format!("the connection ended instead of {what}")),
            }
        }
    }

    fn told_to_come_again(&mut self, item: &Item) -> Option<(Bytes, u32)> {
        let mut refusals = Form::ALL.into_iter().filter_map(|form| Refusal::of(item, form));
        let told = refusals.any(|refusal| refusal.code == "retry/backpressure");
        match &mut self.reserve {
            Some((bytes, times)) if told && *times < AGAIN_MAX => {
                *times += 1;
                Some((bytes.clone(), *times))
            }
            _ => {
                self.reserve = None;
                None
            }
        }
    }

    /// The refusal that has to come next.
    pub(crate) async fn refusal(&mut self, what: &str, run: &Run) -> Result<Refusal, Stop> {
        let item = self.message(what).await?;
        let either = Form::ALL
            .into_iter()
            .filter(|form| *form == self.form || !self.settled);
        match either.into_iter().find_map(|form| Refusal::of(&item, form)) {
            Some(refusal) => Ok(refusal),
            None => fail(format!(
                "{} instead of {what}",
                Schema::get().describe(self.form, &item, run)
            )),
        }
    }

    /// The end that has to come next.
    pub(crate) async fn end(&mut self, run: &Run) -> Result<Option<u16>, Stop> {
        if self.closed {
            return Ok(None);
        }
        loop {
            match self.next("the connection's end").await? {
                Next::Message(item) => {
                    let what = Schema::get().describe(self.form, &item, run);
                    return fail(format!("{what} instead of the connection's end"));
                }
                Next::Pong => {}
                Next::Closed(status) => return Ok(status),
            }
        }
    }
}
