//! Runs one script against a relay, step by step. Whatever comes must be the next thing that is due: a message too many
//! is as wrong as one too few, and that nothing more came is shown at the end by a fence, never by waiting.

mod exhaust;
mod publish;

pub(crate) use publish::{digest, sign};

use crate::cbor::Item;
use crate::frames::{Fields, Form, Refusal, Schema, detail_in};
use crate::link::{Link, Next, Stop, Target, fail};
use crate::script::{Frame, Message, Script, Step, Until, What};
use crate::values::{Bad, Scope, uint};
use bytes::Bytes;
use drover_client::raw::Outgoing;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A script while it runs.
pub(crate) struct Interpreter<'r> {
    target: &'r Target,
    scope: Scope<'r>,
    rule: &'r str,
    form: Form,
    links: BTreeMap<String, Link>,
}

/// Runs a script in a form; what it expects must come, and nothing else.
///
/// # Errors
/// Which step failed and how.
pub(crate) async fn run(
    script: &Script,
    form: Form,
    target: &Target,
    run: &crate::run::Run,
) -> Result<(), Stop> {
    let scope = Scope::new(run, script.scope_name(form), &script.outsiders);
    let mut interpreter = Interpreter::new(target, &script.rule, scope, form);
    interpreter.steps(&script.steps).await?;
    let open: Vec<String> = interpreter.links.keys().cloned().collect();
    for who in open {
        if !interpreter.link(&who)?.closed {
            interpreter
                .fence(&who)
                .await
                .map_err(|stop| placed(stop, &format!("at the end, {who} is fenced")))?;
        }
    }
    Ok(())
}

fn placed(stop: Stop, place: &str) -> Stop {
    match stop {
        Stop::Failed(why) => Stop::Failed(format!("{place}: {why}")),
        Stop::Refused { code, why } => Stop::Refused {
            code,
            why: format!("{place}: {why}"),
        },
        Stop::Script(Bad(why)) => Stop::Script(Bad(format!("{place}: {why}"))),
    }
}

impl<'r> Interpreter<'r> {
    pub(crate) fn new(target: &'r Target, rule: &'r str, scope: Scope<'r>, form: Form) -> Self {
        Self {
            target,
            scope,
            rule,
            form,
            links: BTreeMap::new(),
        }
    }

    /// What the steps saved.
    pub(crate) fn into_saved(self) -> HashMap<String, Item> {
        self.scope.saved
    }

    pub(crate) async fn steps(&mut self, steps: &[Step]) -> Result<(), Stop> {
        for (index, step) in steps.iter().enumerate() {
            let verb = verb(&step.what);
            Box::pin(self.step(step))
                .await
                .map_err(|stop| placed(stop, &format!("step {}, {} {verb}", index + 1, step.who)))?;
        }
        Ok(())
    }

    fn link(&mut self, who: &str) -> Result<&mut Link, Stop> {
        match self.links.get_mut(who) {
            Some(link) => Ok(link),
            None => Err(Bad(format!("{who} never opened a connection")).into()),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        let who = step.who.as_str();
        match &step.what {
            What::Opens {
                groups,
                version,
                until,
                form,
            } => {
                let form = form.unwrap_or(self.form);
                let link = Link::open(self.target, form).await?;
                self.links.insert(who.to_owned(), link);
                let groups = match groups {
                    Some(groups) => groups.clone(),
                    None if self.scope.is_outsider(step.actor()) => json!(["group(main)", "group(root2)"]),
                    None => json!(["group(main)", "group(root)"]),
                };
                self.open(who, step.actor(), &groups, *version, *until).await
            }
            What::Sends { message, form } => self.send(who, message, form.unwrap_or(self.form)).await,
            What::Gets { frame } => self.gets(who, frame).await,
            What::GetsAll { frames } => self.gets_all(who, frames).await,
            What::Refused {
                code,
                retry_after,
                detail,
                closes,
            } => {
                self.refused(who, code, retry_after, detail).await?;
                match closes {
                    true => self.ends(who, None).await,
                    false => self.fence(who).await,
                }
            }
            What::Closed { status } => self.ends(who, *status).await,
            What::Fences => self.fence(who).await,
            What::Closes => {
                self.link(who)?.send(Outgoing::Close).await?;
                self.ends(who, None).await
            }
            What::Exhausts(exhausts) => self.exhaust(who, exhausts).await,
            What::Publishes { change, refused } => {
                self.publish(who, step.actor(), change, refused.as_ref()).await
            }
            What::Lets { values } => {
                for (name, json) in values {
                    let item = self.scope.item(json)?;
                    self.scope.saved.insert(name.clone(), item);
                }
                Ok(())
            }
            What::Repeats { times, steps } => {
                let times = uint(&self.scope.item(times)?)?;
                for n in 0..times {
                    self.scope.saved.insert("n".into(), Item::Uint(n));
                    self.steps(steps)
                        .await
                        .map_err(|stop| placed(stop, &format!("round {}", n + 1)))?;
                }
                Ok(())
            }
            What::Waits { seconds } => {
                tokio::time::sleep(Duration::from_secs(*seconds)).await;
                Ok(())
            }
        }
    }

    /// CONNECT and AUTH as far as the script wants it (02 §4, §5).
    async fn open(
        &mut self,
        who: &str,
        actor: &str,
        groups: &Json,
        version: u64,
        until: Until,
    ) -> Result<(), Stop> {
        if until == Until::Fresh {
            return Ok(());
        }
        let form = self.link(who)?.form;
        let connect = frame(
            "CONNECT",
            json!({"version": version, "groups": groups, "sent_at": {"now": 0}}),
        );
        self.send(who, &Message::Frame(connect), form).await?;
        self.gets(who, &frame("CONNECT_ACK", json!({"version": version.min(4)})))
            .await?;
        self.gets(
            who,
            &frame("AUTH_CHALLENGE", json!({"challenge": {"save": "challenge"}})),
        )
        .await?;
        if until == Until::Challenged {
            return Ok(());
        }
        let key = format!("key({actor})");
        let auth = frame("AUTH", json!({"device_key": key, "challenge": "$challenge"}));
        self.send(who, &Message::Frame(auth), form).await?;
        let ack = match form {
            Form::Array => json!({}),
            Form::Map => json!({"device_key": key}),
        };
        self.gets(who, &frame("AUTH_ACK", ack)).await
    }

    fn encode(&self, frame: &Frame, form: Form) -> Result<Vec<u8>, Bad> {
        let fields = Schema::get().fields(&frame.name, &frame.fields, &self.scope)?;
        Schema::get().encode(&frame.name, &fields, form)
    }

    async fn send(&mut self, who: &str, message: &Message, form: Form) -> Result<(), Stop> {
        let outgoing = match message {
            Message::Frame(frame) => Outgoing::Binary(self.encode(frame, form)?.into()),
            Message::Raw(expression) => Outgoing::Binary(self.scope.bytes(expression)?.into()),
            Message::Text(text) => Outgoing::Text(text.clone()),
            Message::Ping => Outgoing::Ping(Bytes::from_static(b"conform")),
        };
        let link = self.link(who)?;
        if matches!(message, Message::Frame(frame) if frame.name == "CONNECT") && !link.settled {
            link.form = form;
        }
        match (message, outgoing) {
            (Message::Frame(frame), Outgoing::Binary(bytes)) if frame.name == "JOIN_RESERVE" => {
                link.send_again_if_told(bytes).await?;
            }
            (_, outgoing) => link.send(outgoing).await?,
        }
        if matches!(message, Message::Ping) {
            return match link.next("the answer to a ping").await? {
                Next::Pong => Ok(()),
                _ => fail("something else than the answer to a ping"),
            };
        }
        Ok(())
    }

    async fn gets(&mut self, who: &str, frame: &Frame) -> Result<(), Stop> {
        let form = self.link(who)?.form;
        if !Schema::get().is_sent(&frame.name, form)? {
            return Ok(());
        }
        let item = self.link(who)?.message(&frame.name).await?;
        match Schema::get().matches(&frame.name, &frame.fields, form, &item, &mut self.scope)? {
            Ok(()) => {}
            Err(mismatch) => {
                let got = Schema::get().describe(form, &item, self.scope.run);
                let why = format!("{got} instead of {}: {mismatch}", frame.name);
                return Err(match Refusal::of(&item, form) {
                    Some(Refusal { code, .. }) => Stop::Refused { code, why },
                    None => Stop::Failed(why),
                });
            }
        }
        let link = self.link(who)?;
        match frame.name.as_str() {
            "CONNECT_ACK" => link.settled = true,
            "AUTH_ACK" => link.ready = true,
            _ => {}
        }
        Ok(())
    }

    async fn gets_all(&mut self, who: &str, frames: &[Frame]) -> Result<(), Stop> {
        let form = self.link(who)?.form;
        let mut due: Vec<&Frame> = Vec::new();
        for frame in frames {
            if Schema::get().is_sent(&frame.name, form)? {
                due.push(frame);
            }
        }
        while !due.is_empty() {
            let item = self.link(who)?.message("one of several messages").await?;
            let mut found = None;
            for (index, frame) in due.iter().enumerate() {
                if Schema::get()
                    .matches(&frame.name, &frame.fields, form, &item, &mut self.scope)?
                    .is_ok()
                {
                    found = Some(index);
                    break;
                }
            }
            match found {
                Some(index) => drop(due.remove(index)),
                None => {
                    let got = Schema::get().describe(form, &item, self.scope.run);
                    return fail(format!("{got} is none of the {} messages still due", due.len()));
                }
            }
        }
        Ok(())
    }

    async fn refused(
        &mut self,
        who: &str,
        code: &str,
        retry_after: &Json,
        detail: &Json,
    ) -> Result<(), Stop> {
        let run = self.scope.run;
        let refusal = self.link(who)?.refusal(code, run).await?;
        if refusal.code != code {
            return fail(format!("{refusal} instead of {code}"));
        }
        if let Err(mismatch) = self
            .scope
            .matches(retry_after, &Item::Uint(refusal.retry_after_s))?
        {
            return fail(format!("{refusal}: retry_after is {mismatch}"));
        }
        // A map says no limit, so there is nothing to compare; a state hash it says.
        if let Json::Object(_) = detail {
            let lost = refusal.form == Form::Map && refusal.detail.is_empty();
            if !lost
                && let Err(mismatch) = self.scope.matches(detail, &Item::Bytes(refusal.detail.clone()))?
            {
                return fail(format!("{refusal}: detail is {mismatch}"));
            }
            return Ok(());
        }
        let due = match self.scope.item(detail)? {
            Item::Bytes(bytes) => detail_in(refusal.form, bytes),
            other => return Err(Bad(format!("no detail: {other}")).into()),
        };
        match refusal.detail == due {
            true => Ok(()),
            false => fail(format!("{refusal}: detail {} is due", Item::Bytes(due))),
        }
    }

    async fn ends(&mut self, who: &str, status: Option<u16>) -> Result<(), Stop> {
        let run = self.scope.run;
        let got = self.link(who)?.end(run).await?;
        match status {
            Some(due) if got != Some(due) => fail(format!("closed with status {got:?}, not {due}")),
            _ => Ok(()),
        }
    }

    /// A request that is always answered: its answer must be the next message, so nothing else was on its way.
    async fn fence(&mut self, who: &str) -> Result<(), Stop> {
        let run = self.scope.run;
        let link = self.link(who)?;
        let (ask, fields, answer) = match link.ready {
            true => ("ACCESS_QUERY", Fields::new(), "ACCESS_STATE"),
            false => {
                let token = Item::Bytes(vec![0; 16]);
                (
                    "JOIN_RECORD",
                    Fields::from([("token".into(), token)]),
                    "JOIN_RECORD_ANSWER",
                )
            }
        };
        let form = link.form;
        link.send_frame(ask, &fields, form).await?;
        let what = format!("the answer to a fence ({answer})");
        let item = link.message(&what).await?;
        let none = Map::new();
        if Schema::get()
            .matches(answer, &none, form, &item, &mut self.scope)?
            .is_ok()
        {
            return Ok(());
        }
        // A script that used up the fence's own budget is told so, in its turn as well.
        match Form::ALL.into_iter().find_map(|form| Refusal::of(&item, form)) {
            Some(refusal) if refusal.code == "quota/rate_limited" && refusal.retry_after_s == 60 => Ok(()),
            _ => fail(format!(
                "{} instead of {what}",
                Schema::get().describe(form, &item, run)
            )),
        }
    }
}

fn frame(name: &str, fields: Json) -> Frame {
    Frame {
        name: name.to_owned(),
        fields: fields.as_object().cloned().unwrap_or_default(),
    }
}

fn verb(what: &What) -> String {
    match what {
        What::Opens { .. } => "opens".into(),
        What::Sends { message, .. } => match message {
            Message::Frame(frame) => format!("sends {}", frame.name),
            _ => "sends".into(),
        },
        What::Gets { frame } => format!("gets {}", frame.name),
        What::GetsAll { .. } => "gets in any order".into(),
        What::Refused { code, .. } => format!("refused {code}"),
        What::Closed { .. } => "closed".into(),
        What::Fences => "fences".into(),
        What::Closes => "closes".into(),
        What::Exhausts(_) => "exhausts".into(),
        What::Publishes { .. } => "publishes".into(),
        What::Lets { .. } => "lets".into(),
        What::Repeats { .. } => "repeats".into(),
        What::Waits { .. } => "waits".into(),
    }
}
